"""What commands print: tables for people that lose no digit at any width, and JSON or CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from zosam.distributed.ranks import leads
from zosam.lab.callbacks import Tick

GAP = 2  # spaces between columns
SHORTEST = 24  # letters that prose is broken to, at the least
console = Console(quiet=not leads())  # of several processes one speaks
MEASURE = Console(file=io.StringIO(), width=80)  # knows how text is broken; prints nothing
Cells = Sequence[str | Text]


@dataclass(frozen=True)
class Output:
    """In which form results are printed; all else then goes to standard error."""

    json: bool = False
    """Print the results as JSON."""
    csv: bool = False
    """Print the results as CSV."""

    def __post_init__(self) -> None:
        if self.json and self.csv:
            raise ValueError("take --json or --csv: both go to standard output")

    @property
    def is_plain(self) -> bool:
        """Whether people read it."""
        return not (self.json or self.csv)

    def aside(self, console: Console) -> Console:
        """Where to say what is no result: the console, or standard error where a program reads the results."""
        return console if self.is_plain else Console(stderr=True, quiet=not leads())

    def tell(self, text: str, *records: Mapping[str, Any]) -> None:
        """Print what takes no table: the text for people, the records for programs."""
        if self.is_plain:
            console.print(plain(text), soft_wrap=True, highlight=False)
        else:
            self.write(records)

    def write(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Print records; in CSV what lies in a mapping has columns of its own, as in accuracy.mean; a list is JSON."""
        if not leads():
            return
        if self.json:
            json.dump(records, sys.stdout, indent=1, ensure_ascii=False)
            sys.stdout.write("\n")
            return
        flat = [dict(_fields(record)) for record in records]
        found = list(dict.fromkeys(key for record in flat for key in record))
        keys = [key for key in found if not any(other.startswith(f"{key}.") for other in found)]
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(keys)
        table.writerows([[record.get(key, "") for key in keys] for record in flat])


Printed = Annotated[Output, tyro.conf.arg(name="")]  # in the signature of a command: --json and --csv


@dataclass(frozen=True)
class Column:
    """A column of a table; the one with the highest rank is the first to leave a line that is too narrow."""

    name: str
    rank: int = 0
    right: bool = False
    prose: bool = False
    """Whether it may be broken between words; numbers never are."""


def show_table(console: Console, columns: Sequence[Column], rows: Iterable[Cells | Text], head: bool = True) -> None:
    """Print a table: a row is its cells, or one text for a heading.

    In a terminal that is too narrow, columns go by rank from the line to a second one below it, each with its name. In
    a pipe lines are as long as they need to be.
    """
    for line in lay_out(columns, list(rows), console.width if console.is_terminal else None, head):
        console.print(line, soft_wrap=True, highlight=False)


def lay_out(
    columns: Sequence[Column], rows: Sequence[Cells | Text], width: int | None, head: bool = True
) -> list[Text]:
    """The lines of the table at a width; None: as wide as it needs to be."""
    texts = [row if isinstance(row, Text) else [_text(cell) for cell in row] for row in rows]
    cells = [row for row in texts if not isinstance(row, Text)]
    wide = [max([len(c.name) * head, *(row[at].cell_len for row in cells)]) for at, c in enumerate(columns)]
    needed = [min(w, SHORTEST) if c.prose else w for c, w in zip(columns, wide, strict=True)]
    inside = [at for at in range(len(columns)) if wide[at]]
    while width is not None and sum(needed[at] + GAP for at in inside) - GAP > width:
        last = max(inside, key=lambda at: columns[at].rank, default=None)
        if last is None or columns[last].rank == 0:
            break  # what is left never leaves the line
        inside.remove(last)
    if width is not None:
        free = width + GAP - sum(needed[at] + GAP for at in inside if not columns[at].prose)
        wide = [max(SHORTEST, min(w, free - GAP)) if c.prose else w for c, w in zip(columns, wide, strict=True)]
    below = [at for at in range(len(columns)) if wide[at] and at not in inside]
    lines = _lines([Text(c.name, style="dim") for c in columns], columns, wide, inside) if head else []
    for row in texts:
        if isinstance(row, Text):
            lines.append(row)
            continue
        lines += _lines(row, columns, wide, inside)
        named = [Text.assemble((f"{columns[at].name} ", "dim"), row[at]) for at in below if row[at].plain]
        if named:
            lines.append(Text("    ") + Text(" " * GAP).join(named))
    return lines


def plain(text: str) -> Text:
    """Text from a file, as it is: neither markup nor control characters do anything."""
    return Text("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text))


def _lines(row: Sequence[Text], columns: Sequence[Column], wide: Sequence[int], inside: Sequence[int]) -> list[Text]:
    """The line of a row, and as many more as its prose needs."""
    pieces = {at: row[at].wrap(MEASURE, wide[at]) if columns[at].prose else [row[at]] for at in inside}
    lines = []
    for k in range(max(map(len, pieces.values()), default=0)):
        padded = []
        for at in inside:
            text = pieces[at][k] if k < len(pieces[at]) else Text()
            space = Text(" " * (wide[at] - text.cell_len))
            padded.append(space + text if columns[at].right else text + space)
        line = Text(" " * GAP).join(padded)
        line.rstrip()
        lines.append(line)
    return lines


def _text(cell: str | Text) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _fields(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values as CSV has them."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple)) else value


def progress_bar(
    console: Console, unit: str = "", *counts: ProgressColumn, hidden: bool = False, transient: bool = False
) -> Progress:
    """A bar with how many of how many `unit`, or `counts` instead, and the time that has gone; gone itself at the end
    if it is `transient`. In a pipe there is none."""
    counted = counts or (MofNCompleteColumn(), TextColumn(unit))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counted, TimeElapsedColumn())
    return Progress(*columns, console=console, disable=hidden or not console.is_terminal, transient=transient)


def begin(progress: Progress, name: str) -> Tick:
    """A new bar, and what to tell how many of how many are done; without a terminal its name is a line."""
    task = progress.add_task(name, total=None)
    if not progress.console.is_terminal:
        progress.console.print(name, markup=False, highlight=False, soft_wrap=True)
    return lambda done, of: progress.update(task, completed=done, total=of)
