"""`zosam runs` and `zosam compare`: what lies in a folder, and how trainings differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import tyro

from zosam.lab.measure.convergence import spent
from zosam.lab.report.finding import duration
from zosam.lab.shelf import ORDERS, Found, Sort, Status, having, look, unread
from zosam.lab.terminal import Cells, Column, Output, Printed, console, plain, show_table


def runs(
    folder: Annotated[Path, tyro.conf.Positional] = Path("runs"),
    only: str = "",
    status: Status | None = None,
    where: tuple[str, ...] = (),
    sort: Sort = "name",
    output: Printed = Output(),
) -> None:
    """The runs in a folder: how far each came, its accuracy and what it has cost.

    A run is finished, training while a process is at it, stopped if the same command would go on, or damaged.

    Args:
        folder: Folder that holds the folders of all runs.
        only: Those whose name holds this regular expression; a name says data, network, method and optimizer.
        status: Only those.
        where: Those whose fields are so, such as optimizer=looksam sparsity=0.9.
        sort: By name, the best first, the most expensive first, or the latest first.
        output: In which form to print them.
    """
    try:
        pattern = re.compile(only, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"--only takes a regular expression, and {only!r} is none ({error})") from None
    there = list(look(folder))
    found = [run for run in there if pattern.search(run.path.name) and status in (None, run.status)]
    found = sorted(filter(having(where), found), key=ORDERS[sort])
    if not output.is_plain:
        output.write([run.as_record() for run in found])
        return
    columns = [
        Column("run"), Column("status"), Column("accuracy", right=True), Column("epoch", 1, right=True),
        Column("seed", 2, right=True), Column("wall time", 3, right=True), Column("passes", 4, right=True),
        Column("sparsity", 5, right=True), Column("changed", 6, right=True),
    ]  # fmt: skip
    show_table(console, columns, [_cells(run) for run in found])
    for run in found:
        if run.why:
            console.print(plain(f"{run.path.name}: {run.why}"), style="red", highlight=False, soft_wrap=True)
    counts = f"{len(found)} of " * (len(found) < len(there)) + f"{len(there)} run{'s' * (len(there) != 1)}"
    told = f"{counts}, {duration(sum(run.seconds for run in found))} of wall time"
    console.print(f"\n{told}; of the passes a backward counts two", highlight=False, soft_wrap=True)


def _cells(run: Found) -> Cells:
    changed = f"{duration(run.idle_for)} ago"
    if run.what is None:
        return [plain(run.path.name), run.status, *[""] * 6, changed]
    last, seed = run.last, str(run.what.seed)
    if not last:
        return [plain(run.path.name), run.status, "", f"0/{run.what.epochs}", seed, *[""] * 3, changed]
    return [
        plain(run.path.name),
        run.status,
        f"{last['test_accuracy']:.2%}",
        f"{last['epoch']}/{max(run.what.epochs, last['epoch'])}",
        seed,
        duration(run.seconds),
        f"{spent([last])[0]:,.0f}",
        f"{last['sparsity']:.2%}",
        changed,
    ]


Some = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)")
]


def compare(paths: Some, output: Printed = Output()) -> None:
    """Trainings against the first of them, seed by seed, with 95 % intervals.

    Each folder stands for a training under all seeds that lie beside it. A folder of runs stands for all trainings in
    it, those by SGD first. Accuracy is that of the last epoch on the test set, of the averaged weights where there are
    some.

    Args:
        paths: Folders of finished runs, or folders that hold such; the first is what the others are compared with.
        output: In which form to print the comparison.
    """
    from zosam.lab.paper.answers import as_record, show_rows
    from zosam.lab.paper.compare import compared

    for told in filter(None, map(unread, paths)):
        output.aside(console).print(plain(told), style="red", highlight=False, soft_wrap=True)
    found = compared(paths)
    if not output.is_plain:
        output.write([as_record(row) for row in found])
        return
    show_rows(found)
    first, *others = found
    pairs = {row.gap.n for row in others if row.gap is not None}
    told = f" (shared: {' to '.join(str(n) for n in sorted({min(pairs), max(pairs)}))})" if pairs else ""
    console.print(
        f"\nDifferences are to {first.label}, seed by seed{told}; ± is Student's 95 % interval, which one seed or"
        " equal differences do not have. idle: whether each training had its core to itself, so that its time can be"
        " relied on.",
        style="dim", highlight=False, markup=False, soft_wrap=not console.is_terminal,
    )  # fmt: skip
    for row in others:
        if row.gap is None:
            said = f"{row.label} shares no seed with {first.label}: train both under the same seeds to compare them."
            console.print(said, highlight=False, markup=False, soft_wrap=True)
