"""What a finished run gives for a cell: one number, in the units that the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from zosam.lab.callbacks import Tick, nobody
from zosam.lab.data import cifar_c
from zosam.lab.device import placed
from zosam.lab.locks import locked, work_through
from zosam.lab.measure.convergence import to_target
from zosam.lab.measure.robustness import Accuracies, corrupted, summary
from zosam.lab.paper import recipes
from zosam.lab.paper.notes import CORRUPTED
from zosam.lab.paper.recipes import Tier
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.table import Cell
from zosam.lab.record import Record
from zosam.lab.run import Run, finished
from zosam.lab.terminal import begin, progress_bar
from zosam.lab.where import Where

OF_CORRUPTED = {"corrupted_accuracy", "robustness_gap"}  # what a cell shows that is measured on CIFAR-10-C


def values(cell: Cell, book: Book, tier: Tier, seeds: int) -> dict[int, float]:
    """The cell's number for each seed that is there."""
    found = {}
    for seed in range(seeds if cell.run is not None else 0):
        assert cell.run is not None
        record = book.get(replace(cell.run, seed=seed))
        number = None if record is None else value(cell.measure, record, book, tier)
        if number is not None:
            found[seed] = number
    return found


def value(measure: str, record: Record, book: Book, tier: Tier) -> float | None:
    """One number; None where the trained network has yet to be measured."""
    if measure == "test_accuracy":
        return 100 * float(record.last["test_accuracy"])
    if measure == "epochs_to_90":
        reached = to_target(record.epochs, tier.goal)
        return float(record.last["epoch"]) + 1 if reached is None else reached["epochs"]
    found = corrupted_accuracies(record.run, book)
    if found is None:
        return None
    about = summary(found, float(record.last["test_accuracy"]))
    return 100 * about["mean" if measure == "corrupted_accuracy" else "gap"]


def corrupted_accuracies(run: Run, book: Book) -> Accuracies | None:
    """The accuracy on every part of CIFAR-10-C, if it was measured."""
    note: Mapping[str, Any] | None = book.note(run, CORRUPTED)
    if note is None:
        return None
    return {(name, at + 1): a for name, each in note["accuracy"].items() for at, a in enumerate(each)}


def measure_corrupted(record: Record, book: Book, tier: Tier, where: Where, tick: Tick = nobody) -> None:
    """Test a trained network on CIFAR-10-C, and keep the result in the run's folder."""
    with where.here() as device:
        parts = cifar_c.corrupted(data_dir=where.data_dir, device=device)
        found = corrupted(placed(record.load(), device), parts, limit=tier.pictures, tick=tick)
    by_name: dict[str, list[float]] = {}
    for (name, _), accuracy in sorted(found.items()):
        by_name.setdefault(name, []).append(accuracy)
    book.keep(record.run, CORRUPTED, {"pictures": tier.pictures, "accuracy": by_name})


def measure_corruptions(runs: Iterable[Run], book: Book, tier: str, where: Where, say: Console) -> None:
    """Test the networks of the finished runs on CIFAR-10-C, where nobody has: several processes share them."""

    def is_done(run: Run) -> bool:
        return book.note(run, CORRUPTED) is not None

    todo = [run for run in dict.fromkeys(runs) if book.holds(run) and not is_done(run)]
    with progress_bar(say, hidden=not todo) as progress:

        def measure(run: Run) -> None:
            with locked(book.root / run.folder):
                if is_done(run):
                    return
                record = finished(book.root / run.folder, run)
                tick = begin(progress, f"CIFAR-10-C: {run.folder}")
                measure_corrupted(record, book, recipes.tier(tier), where, tick)

        work_through(todo, is_done, measure)
