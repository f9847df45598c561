"""`zosam evidence`: train what a question or the tuning for it still lacks, and show what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from zosam.lab.paper.commands import Elsewhere, print_records, refuse, save_lines
from zosam.lab.paper.corrupted import corrupted_rows, show_corrupted
from zosam.lab.paper.cost import Costs
from zosam.lab.paper.evidence import TUNING, Grid, Question, Row, grids, names, question, rows
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.sweep import missing, with_seeds
from zosam.lab.paper.train_missing import train_missing
from zosam.lab.paper.value import measure_corruptions
from zosam.lab.report.finding import duration
from zosam.lab.run import Run
from zosam.lab.terminal import Column, Output, Printed, console, show_table
from zosam.lab.where import Where


def evidence(
    name: Annotated[str, tyro.conf.Positional],
    seeds: int | None = None,
    budget: str | None = None,
    train: bool = True,
    corrupted: bool = False,
    shard: str | None = None,
    out: Path = Path("runs"),
    results: tuple[Path, ...] = (),
    save: Path | None = None,
    cost: bool = False,
    where: Elsewhere = Where(),
    output: Printed = Output(),
) -> None:
    """Answer one question about sparse training: train the runs that are missing, then compare.

    Arms are compared seed by seed with a 95 % interval. Settings are tuned first, on held-out pictures and another
    seed, with as many trials for every method: `zosam evidence tuning`. It can be stopped and run again at any moment,
    also by several processes at once on the same folder: a finished run is never trained again.

    Args:
        name: One of those that `zosam evidence list` shows; all for one after the other.
        seeds: Seeds per arm; by default what the question says.
        budget: Start no run that would not end within this time, such as 30m or 2h.
        train: With --no-train only show what is there.
        corrupted: Test networks of CIFAR-10 on CIFAR-10-C, too: accuracy by severity here, by corruption in the report.
        shard: Take only part i of n of the runs, written i/n, for job arrays.
        out: Folder that holds the folders of all runs.
        results: JSON-lines files with results of runs that are not in the folder.
        save: Add the finished runs to a JSON-lines file.
        cost: In the list, say how many hours of one core the missing trainings would take; it times a step of each.
        where: Where and how to train.
        output: In which form to print the answer.
    """
    shows = not train or name == "list"
    refuse(
        {
            "--budget": budget is not None and shows,
            "--shard": shard is not None and shows,
            "--cost": cost and name != "list",
            "--corrupted": corrupted and name in ("list", TUNING),
        }
    )
    book, say, records = Book.open(out, results), output.aside(console), []
    if name == "list":
        costs = Costs(book, where, by="cpu_seconds") if cost else None
        print_records([_listed(each, book, seeds, costs) for each in names()], output)
        return
    for each in names() if name == "all" else [name]:
        runs = _runs(each, book, seeds)
        if train:
            train_missing(runs, book, each, budget, shard, None, 1, 0, where, say)
        if corrupted:
            measure_corruptions([run for run in runs if run.data.name == "cifar10"], book, "small", where, say)
        if each == TUNING:
            records += _show_grids(grids(), book, output)
        else:
            asked = question(each, book)
            asked = replace(asked, seeds=asked.seeds if seeds is None else seeds)
            records += _show(asked, book, output)
            if corrupted:
                records = _with_corrupted(records, asked, book, output)
        if save is not None:
            save_lines(save, runs, book, say, _trials(book) if each == TUNING else None)
    if not output.is_plain:
        output.write(records)


def _with_corrupted(records: list[dict[str, Any]], asked: Question, book: Book, output: Output) -> list[dict[str, Any]]:
    """Print the accuracies on corrupted pictures, too; in records they stand beside the arm's others."""
    rows = corrupted_rows(asked, book)
    if output.is_plain:
        show_corrupted(rows)
    known = {(asked.name, row.pop("group"), row.pop("arm")): row for row in rows}
    return [r | {"corrupted": c} if (c := known.get((r["question"], r["group"], r["arm"]))) else r for r in records]


def _runs(name: str, book: Book, seeds: int | None, guess: bool = False) -> list[Run]:
    if name == TUNING:
        return [run for grid in grids() for run in grid.trials.values()]
    asked = question(name, book, guess)
    return with_seeds(asked.runs(), asked.seeds if seeds is None else seeds)


def _listed(name: str, book: Book, seeds: int | None, costs: Costs | None) -> dict[str, Any]:
    runs = _runs(name, book, seeds, guess=True)
    lacking = missing(runs, book)
    asked = None if name == TUNING else question(name, book)
    title = "The settings of every method, by as many trials" if asked is None else asked.title
    hours = {} if costs is None else {"core-hours": round(costs.total(lacking) / 3600, 1)}
    done = {"name": name, "finished": len(runs) - len(lacking), "missing": len(lacking)}
    return done | hours | {"title": title + (" (after tuning)" if asked is not None and asked.waits_for else "")}


def _trials(book: Book) -> dict[Run, dict[str, Any]]:
    """What stands in the line of every trial: whose it is, and whether it was chosen."""
    found = {}
    for grid in grids():
        best = grid.best(book)
        for at, run in grid.trials.items():
            settings = dict(zip(grid.axes, at, strict=True))
            found[run] = {"trial": {"method": grid.method, **settings, "chosen": settings == best}}
    return found


def _show_grids(found: list[Grid], book: Book, output: Output) -> list[dict[str, Any]]:
    """Every grid with what the trials came to, the best one and whether it lies inside; as records for programs."""
    records = []
    for grid in found:
        known, best, (own, decay) = grid.accuracies(book), grid.best(book), grid.axes
        top = max(known.values(), default=None)
        records += [
            {"method": grid.method, "setting": own, "value": a, decay: d, "validation_accuracy": known.get((a, d)),
             "chosen": {own: a, decay: d} == best}
            for a, d in grid.trials
        ]  # fmt: skip
        if not output.is_plain:
            continue
        columns = [Column(own), *(Column(f"decay {d:g}", right=True) for d in grid.axes[decay])]
        table: list[list[str | Text]] = []
        for a in grid.axes[own]:
            values = [known.get((a, d)) for d in grid.axes[decay]]
            cells = [Text("–" if v is None else f"{v:.2f}", style="bold" if v == top else "") for v in values]
            table.append([f"{a:g}", *cells])
        console.print(f"\n{grid.method}", style="bold", highlight=False)
        show_table(console, columns, table)
        console.print(_verdict(grid, best, top, len(known)), highlight=False)
    return records


def _verdict(grid: Grid, best: dict[str, float] | None, top: float | None, known: int) -> str:
    if best is None or top is None:
        return f"{known} of {len(grid.trials)} trials are finished: nothing is chosen yet."
    edge = grid.at_edge(best)
    told = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in best.items())
    place = f"at the edge of the grid in {' and '.join(edge)}: it may not be the optimum" if edge else "inside the grid"
    return f"chosen: {told} ({top:.2f} %), {place}."


def _show(asked: Question, book: Book, output: Output) -> list[dict[str, Any]]:
    """The arms of a question, group by group; as records for programs."""
    known = list(rows(asked, book))
    if output.is_plain:
        console.print(f"\n{asked.title}", style="bold", highlight=False)
        show_rows(known)
        lacking = missing(with_seeds(asked.runs(), asked.seeds), book)
        if lacking or asked.waits_for:
            after = f" Arms tuned by {', '.join(asked.waits_for)} wait for that grid." if asked.waits_for else ""
            console.print(f"{len(lacking)} trainings are missing.{after}", style="dim", highlight=False)
    return [{"question": asked.name, "group": row.group, **as_record(row)} for row in known]


def show_rows(known: Sequence[Row]) -> None:
    """Print what arms came to, group by group."""
    columns = [
        Column(""), Column("accuracy, %", right=True), Column("difference", right=True),
        Column("seeds", 1, right=True), Column("train loss", 2, right=True), Column("CPU time", 3, right=True),
        Column("idle", 4),
    ]  # fmt: skip
    table: list[Any] = []
    for group in dict.fromkeys(row.group for row in known):
        table += [Text(group, style="bold")] if group else []
        table += [_cells(row) for row in known if row.group == group]
    show_table(console, columns, table)


def as_record(row: Row) -> dict[str, Any]:
    """The same for programs."""
    return {
        "arm": row.label, "accuracy": asdict(row.accuracy),
        "difference": None if row.gap is None else asdict(row.gap), "train_loss": row.train_loss,
        "cpu_seconds": row.cpu_seconds, "idle": row.idle,
    }  # fmt: skip


def _cells(row: Row) -> list[str]:
    gap = "" if row.gap is None else row.gap.text(sign=True)
    time, idle = duration(row.cpu_seconds), "yes" if row.idle else "no"
    return [f"  {row.label}", row.accuracy.text(), gap, str(row.accuracy.n), f"{row.train_loss:.3f}", time, idle]
