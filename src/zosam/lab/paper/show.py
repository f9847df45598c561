"""A table with our numbers beside the printed ones: as data for the report, and in the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from zosam.lab.measure.estimate import BySeed, difference, estimate, share
from zosam.lab.paper import recipes, speed
from zosam.lab.paper.cost import Costs
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.table import Cell, Table
from zosam.lab.paper.value import values
from zosam.lab.paper.verdict import verdict
from zosam.lab.report.finding import duration
from zosam.lab.report.overview import interval
from zosam.lab.terminal import Cells, Column, show_table

SPEEDS = "images_per_second"
STYLES = {"reproduced": "green", "same direction": "green", "other direction": "red", "above": "yellow", "below": "red"}


def chosen(table: Table, only: str | None, printed_only: bool = False) -> list[Cell]:
    """The cells whose "row / column" a pattern finds, and those that they are compared with; if `printed_only`, of the
    rows that the paper has."""
    try:
        pattern = re.compile(only or "", re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"--only takes a regular expression, and {only!r} is none ({error})") from None
    found = [c for c in table.cells if pattern.search(f"{c.row} / {c.column}")]
    if found and printed_only:
        found = [c for c in found if not c.control]
        if not found:
            raise ValueError(f"{only!r} finds controls only, which --printed-only leaves out")
    if not found:
        raise ValueError(f"no cell of {table.name} is called {only!r}; a cell's name is 'row / column', such as"
                         f" '{table.cells[0].row} / {table.cells[0].column}'")  # fmt: skip
    others = {(o.row, o.column) for c in found if (o := table.versus(c)) is not None}
    return [c for c in table.cells if c in found or (c.row, c.column) in others]


def filled(table: Table, book: Book, seeds: int, only: str | None = None, printed_only: bool = False) -> dict[str, Any]:
    """The table for the report: what was printed, ours, the difference, the verdict and the cost of each cell."""
    tier, shown = recipes.tier(table.tier), chosen(table, only, printed_only)
    if table.changed:  # then it can say no more of a printed value than which is larger
        tier = replace(tier, says="direction", note=f"Not the tier's own trainings: {', '.join(table.changed)}.")
    places = {(c.row, c.column): c for c in shown}
    both = {place: _numbers(c, table, book, tier, seeds) for place, c in places.items()}
    rows = []
    for row in dict.fromkeys(c.row for c in shown):
        cells = [_cell(places.get((row, column)), both, tier, book) for column in table.columns]
        rows.append({"name": row, "control": table.cell(row, table.columns[0]).control, "cells": cells})
    goal = ""
    if any(c.measure == "epochs_to_90" for c in shown):
        goal = f" The goal is {tier.goal:.0%} here; a training that misses it counts as one epoch longer than it was."
    if any(c.measure == SPEEDS for c in shown):
        goal += f" {speed.ABOUT}"
    return {
        "name": table.name,
        "title": table.title,
        "tier": table.tier,
        "note": f"{table.note}{goal} {tier.note}".strip(),
        "columns": list(table.columns),
        "rows": rows,
        "notes": list(table.misprints),
    }


COLUMNS = (
    Column(""), Column("ours ± 95 %", right=True), Column("difference", 1, right=True), Column("paper", 2, right=True),
    Column("verdict", 3), Column("cost", 4, right=True),
)  # fmt: skip


def show(content: dict[str, Any], console: Console) -> None:
    """Print it, one line for each cell that was printed or run."""
    console.print(f"\n{content['title']}", style="bold", highlight=False, soft_wrap=True)
    about = f"{content['name']}, tier {content['tier']}. {content['note']}\n"
    console.print(about, style="dim", highlight=False, soft_wrap=not console.is_terminal)
    rows: list[Cells | Text] = []
    for row in content["rows"]:
        cells = _shown(content["columns"], row)
        if cells:
            rows.append(Text(row["name"], style="italic" if row["control"] else "bold"))
        for column, cell in cells:
            word = Text(cell["verdict"], style=STYLES.get(cell["verdict"], "dim"))
            rows.append([f"  {column}", cell["ours"], cell["difference"], cell["paper"], word, cell["cost"]])
    show_table(console, COLUMNS, rows)
    if any(row["control"] for row in content["rows"]):
        console.print("\nRows in italics are not in the paper: controls, and options of ours.", style="dim")
    for note in content["notes"]:
        console.print(f"Misprint: {note}", style="dim", highlight=False, markup=False)


def records(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The same for programs: a record for each cell that was printed or run, numbers as numbers."""
    return [
        {
            "table": content["name"], "tier": content["tier"], "row": row["name"], "control": row["control"],
            "column": column, "paper": cell["paper"],
            "mean": fmean(cell["seeds"].values()) if cell["seeds"] else None,
            "half_width": estimate(cell["seeds"].values()).half_width if cell["seeds"] else None,
            "by_seed": cell["seeds"],
            "difference": cell["gap"] and cell["gap"]["mean"],
            "difference_half_width": cell["gap"] and cell["gap"]["half"],
            "verdict": cell["verdict"], "cost": cell["cost"], "note": cell["note"],
        }
        for row in content["rows"]
        for column, cell in _shown(content["columns"], row)
    ]  # fmt: skip


def _shown(columns: list[str], row: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(n, c) for n, c in zip(columns, row["cells"], strict=True) if c and (c["paper"] or c["ours"])]


def _numbers(cell: Cell, table: Table, book: Book, tier: recipes.Tier, seeds: int) -> tuple[BySeed, BySeed]:
    """A cell's numbers and those of the one it is compared with, by seed; speeds by the round of their measurement."""
    other = table.versus(cell)
    if cell.measure != SPEEDS:
        return values(cell, book, tier, seeds), {} if other is None else values(other, book, tier, seeds)
    if cell.run is None:
        return {}, {}
    mine, theirs = speed.speeds(cell.run, table.pacemaker(cell), book)
    return mine, {} if other is None else theirs


def _cell(
    cell: Cell | None, both: dict[tuple[str, str], tuple[BySeed, BySeed]], tier: recipes.Tier, book: Book
) -> dict[str, Any] | None:
    if cell is None:
        return None
    mine, theirs = both[cell.row, cell.column]
    is_speed = cell.measure == SPEEDS
    gap = (share if is_speed else difference)(mine, theirs) if mine and theirs else None
    note = cell.misprint if cell.run is not None else f"{cell.misprint} The {tier.name} tier has no such run.".strip()
    return {
        "paper": cell.printed,
        "ours": estimate(mine.values()).text() if mine else "",
        "difference": "" if gap is None else f"{gap.text()} %" if is_speed else gap.text(sign=True),
        "verdict": verdict(cell, mine, theirs, tier.says),
        "cost": "" if is_speed else _cost(cell, book, mine),
        "note": note,
        "seeds": mine,
        "gap": None if is_speed else interval(gap),
    }


def _cost(cell: Cell, book: Book, seeds: Iterable[int]) -> str:
    if cell.run is None:
        return ""
    costs = Costs(book)
    spent = [s for seed in seeds if (s := costs.spent(replace(cell.run, seed=seed))) is not None]
    return f"{len(spent)} × {duration(fmean(spent))}" if spent else ""
