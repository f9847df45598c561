"""Any finished trainings against the first of them: the statistics of `zosam evidence`, on folders that one names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from zosam.lab.paper.evidence import Entry, Row, row
from zosam.lab.paper.results_store import Book
from zosam.lab.report.arms import short
from zosam.lab.run import Run, finished


def compared(paths: Iterable[Path]) -> list[Row]:
    """A row for each training, under all seeds that lie beside it; the first is what the others are compared with."""
    asked, shelves = [], {}
    for path in paths:
        is_run = (path / "record.json").is_file()
        shelf = path.parent if is_run else path
        if shelf not in shelves:
            shelves[shelf] = Book(shelf).entries()
        there = [Run.read(entry["run"]) for entry in shelves[shelf]]
        if not there and not is_run:
            raise ValueError(f"{path} holds no finished run; `zosam runs {path}` says what is there")
        asked += [finished(path).run] if is_run else sorted(there, key=lambda run: run.optimizer.name != "sgd")
    arms = list(dict.fromkeys(replace(run, seed=0) for run in asked))
    if len(arms) < 2:
        raise ValueError("compare takes two trainings or more that differ in more than their seed")
    lines = {entry["key"]: entry for entries in shelves.values() for entry in entries}
    book = Book(next(iter(shelves)), lines)
    seeds = sorted({entry["run"]["seed"] for entry in lines.values()})
    labels, first = _labels(arms), arms[0]
    entries = [Entry("", labels[arm], arm, None if arm == first else first) for arm in arms]
    return [found for entry in entries if (found := row(entry, seeds, book)) is not None]


def _labels(arms: list[Run]) -> dict[Run, str]:
    """What tells each from the others: the fields in which they differ."""
    names = dict.fromkeys(name for arm in arms for name in arm.description)
    differ = [name for name in names if len({str(arm.description.get(name)) for arm in arms}) > 1]
    return {arm: ", ".join(filter(None, (_said(name, arm) for name in differ))) for arm in arms}


def _said(name: str, arm: Run) -> str:
    value: Any = getattr(arm, name)
    if name not in arm.description:  # it has no effect there
        return ""
    if name in ("model", "data", "method", "optimizer"):
        return str(value)
    return f"{name.replace('_', ' ')} {short(value)}"
