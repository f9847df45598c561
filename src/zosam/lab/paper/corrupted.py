"""What the arms of a question are worth on corrupted pictures: means, and accuracy by severity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from rich.text import Text

from zosam.lab.measure.robustness import Accuracies
from zosam.lab.paper.evidence import Question
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.value import corrupted_accuracies
from zosam.lab.report.overview import ROBUSTBENCH
from zosam.lab.terminal import Column, console, show_table


def corrupted_rows(asked: Question, book: Book) -> list[dict[str, Any]]:
    """For each arm of which a network was tested: accuracies in per cent, over the seeds that were; as records."""
    found = []
    for entry in asked.shown:
        tested: list[tuple[float, Accuracies]] = []
        for seed in range(asked.seeds) if entry.run is not None else ():
            run = replace(entry.run, seed=seed) if entry.run is not None else None
            record = None if run is None else book.get(run)
            accuracies = None if run is None else corrupted_accuracies(run, book)
            if record is not None and accuracies is not None:
                tested.append((float(record.last["test_accuracy"]), accuracies))
        if tested:
            means = [_means(accuracies) for _, accuracies in tested]
            mean = {key: 100 * fmean(m[key] for m in means) for key in means[0] if all(key in m for m in means)}
            clean = 100 * fmean(accuracy for accuracy, _ in tested)
            found.append({"group": entry.group, "arm": entry.label, "seeds": len(tested), "clean": clean, **mean})
    return found


def show_corrupted(rows: list[dict[str, Any]]) -> None:
    """Print them, group by group."""
    if not rows:
        console.print("\nNo network of this question was tested on CIFAR-10-C yet.", style="dim", highlight=False)
        return
    console.print("\nOn corrupted pictures (CIFAR-10-C), accuracy in %", style="bold", highlight=False)
    keys = list(dict.fromkeys(key for row in rows for key in row))[2:]
    ranks = {
        "seeds": 3,
        "robustbench": 1,
        "severity 1": 1,
        "severity 5": 1,
        "severity 2": 2,
        "severity 3": 2,
        "severity 4": 2,
    }
    columns = [Column(""), *(Column(key, ranks.get(key, 0), right=True) for key in keys)]
    table: list[Any] = []
    for group in dict.fromkeys(row["group"] for row in rows):
        table.append(Text(group, style="bold"))
        table += [[f"  {row['arm']}", *(_said(row.get(key)) for key in keys)] for row in rows if row["group"] == group]
    show_table(console, columns, table)
    console.print("mean: of all corruptions; robustbench: of the 15 of RobustBench.", style="dim", highlight=False)


def _said(value: float | int | None) -> str:
    return "–" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"


def _means(found: Accuracies) -> Mapping[str, float]:
    """Over all corruptions, over RobustBench's 15 if all are there, and at each severity."""
    means = {"mean": fmean(found.values())}
    if set(ROBUSTBENCH) <= {name for name, _ in found}:
        means["robustbench"] = fmean(a for (name, _), a in found.items() if name in ROBUSTBENCH)
    for at in sorted({severity for _, severity in found}):
        means[f"severity {at}"] = fmean(a for (_, severity), a in found.items() if severity == at)
    return means
