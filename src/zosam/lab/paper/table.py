"""A table of the paper: what was printed in each cell, and the training that should give the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Any, NamedTuple, get_type_hints

from zosam.lab.paper import recipes
from zosam.lab.paper.printed import parse
from zosam.lab.paper.source import read
from zosam.lab.radius import Radius
from zosam.lab.run import Run
from zosam.lab.settings import Chosen
from zosam.lab.spelling import value_of
from zosam.names import find

NAMES = tuple(f"table{n}" for n in range(1, 7))  # in the order in which the paper shows them
Row = dict[str, Any]


class Measure(NamedTuple):
    """What a cell shows, and how near to a printed number ours must be to count as the same."""

    text: str
    tolerance: float


MEASURES = {
    "test_accuracy": Measure("test accuracy of the last epoch, in per cent", 0.3),
    "corrupted_accuracy": Measure("accuracy on CIFAR-10-C, mean over corruptions and severities, in per cent", 0.5),
    "robustness_gap": Measure("test accuracy less corrupted accuracy, in points", 0.5),
    "epochs_to_90": Measure("first epoch with 90 % test accuracy; one more than there are if none has it", 5.0),
    "images_per_second": Measure("images per second, measured side by side; per cent of the reference row's", 5.0),
}


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    row: str
    column: str
    printed: str
    """As in the paper; empty where it has nothing."""
    run: Run | None
    """The training at seed 0; None if the tier cannot do it."""
    measure: str
    versus: str | None
    """The row to compare with: the same training under the base optimizer."""
    control: bool
    """Whether the row is ours, not the paper's."""
    direction: int
    """1 if the paper printed more here than in the row to compare with, -1 if less, 0 if it does not say."""
    misprint: str
    """What is wrong or doubtful about the printed number."""


@dataclass(frozen=True)
class Table:
    """A table of the paper, at a tier."""

    name: str
    title: str
    label: str
    tier: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[Cell, ...]
    misprints: tuple[str, ...]
    changed: tuple[str, ...] = ()
    """Fields of every run that are set otherwise than the tier says."""

    def cell(self, row: str, column: str) -> Cell:
        return next(c for c in self.cells if (c.row, c.column) == (row, column))

    def versus(self, cell: Cell) -> Cell | None:
        """The cell to compare with."""
        return None if cell.versus is None else self.cell(cell.versus, cell.column)

    def pacemaker(self, cell: Cell) -> Run | None:
        """What a cell's speed is measured beside: the row it is compared with, else the first that others are."""
        bases = {c.versus for c in self.cells if c.versus is not None}
        beside = cell.versus or (cell.row if cell.row in bases else next(r for r in self.rows if r in bases))
        return self.cell(beside, cell.column).run


def load(name: str, tier: str, change: Sequence[str] = ()) -> Table:
    """The table called `name` with the trainings of a tier; `change` sets fields of all of them, such as epochs=1."""
    fields = changes(change)
    content = read(find({n: n for n in NAMES}, name, "table"))
    how, columns = recipes.tier(tier), content["column"]
    arms = {name: how.arms[name] for name in content.get("arms", []) if name in how.arms}
    rows = {row["name"]: row for row in _with_controls(content["row"], content.get("also", []), arms)}
    misprints = content.get("misprint", [])
    cells = []
    for row in rows.values():
        for place, column in enumerate(columns):
            measure = column.get("measure", content["measure"])
            find(MEASURES, measure, "measure")
            run = None if measure in how.without else how.run(**content["run"] | column["run"] | row["run"])
            cells.append(
                Cell(
                    row=row["name"],
                    column=column["name"],
                    printed=_printed(row, place),
                    run=run and replace(run, **fields),
                    measure=measure,
                    versus=row.get("versus"),
                    control="printed" not in row or "printed_in" in row,
                    direction=_direction(_printed(row, place), _printed(rows.get(row.get("versus"), {}), place)),
                    misprint=" ".join(m["says"] for m in misprints if _concerns(m, row["name"], column["name"])),
                )
            )
    return Table(
        name=name,
        title=content["title"],
        label=content["label"],
        tier=tier,
        note=content["note"],
        columns=tuple(c["name"] for c in columns),
        rows=tuple(rows),
        cells=tuple(cells),
        misprints=tuple(": ".join(filter(None, (m.get("row"), m["says"]))) for m in misprints),
        changed=tuple(change),
    )


def changes(words: Sequence[str]) -> dict[str, Any]:
    """Fields of a run from words such as epochs=1."""
    known, found = get_type_hints(Run), {}
    for word in words:
        name, equals, text = word.partition("=")
        wanted = find(known, name, "field of a run")
        if not equals:
            raise ValueError(f"a change is FIELD=VALUE, such as epochs=1, not {word!r}")
        parameter = Parameter(name, Parameter.KEYWORD_ONLY, annotation=str if wanted in (Chosen, Radius) else wanted)
        try:
            found[name] = value_of(text, parameter, {})
        except ValueError as error:
            raise ValueError(f"{name} must be {error}, not {text}") from None
    return found


def _with_controls(rows: list[Row], also: list[str], arms: Mapping[str, Any]) -> Iterator[Row]:
    """The rows; after each group that is compared with one base row, that row under the optimizers of `also`, and it
    and its ZO-SAM once more in every arm."""
    bases = {row["versus"] for row in rows if "versus" in row}
    base: Row | None = None
    for row in [*rows, None]:
        if base is not None and (row is None or "versus" not in row):
            for optimizer in also:
                name = f"{base['name']} + {recipes.label(optimizer)}"
                yield {"name": name, "versus": base["name"], "run": base["run"] | {"optimizer": optimizer}}
            group = [base, *(r for r in rows if r.get("versus") == base["name"] and r["run"]["optimizer"] == "zosam")]
            for arm, one in ((arm, one) for arm in arms for one in group):
                again = {"name": f"{one['name']}, {arms[arm]['label']}", "run": one["run"] | {"arm": arm}}
                yield again | ({} if one is base else {"versus": f"{base['name']}, {arms[arm]['label']}"})
            base = None
        if row is not None:
            yield row
            base = row if row["name"] in bases else base


def _printed(row: Row, place: int) -> str:
    return str(row["printed"][place]) if "printed" in row else ""


def _direction(here: str, there: str) -> int:
    """By the two values, else by the printed share."""
    mine, other = parse(here), parse(there)
    if mine is not None and other is not None:
        return (mine.value > other.value) - (mine.value < other.value)
    if mine is not None and mine.share is not None:
        return (mine.share > 100) - (mine.share < 100)
    return 0


def _concerns(misprint: dict[str, Any], row: str, column: str) -> bool:
    return misprint.get("row") == row and column in misprint.get("columns", [column])
