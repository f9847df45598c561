"""`zosam list` and `zosam demo`: what there is, and a first look at it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from zosam.lab.terminal import Cells, Column, Output, Printed, console, show_table
from zosam.names import summary


def list_(output: Printed = Output()) -> None:
    """Every optimizer, sparse method, network, data set and schedule, with one line each.

    Args:
        output: In which form to print them.
    """
    from zosam.lab.assemble import METHOD, OPTIMIZER
    from zosam.lab.data import DATA
    from zosam.lab.lr_schedules import SCHEDULES
    from zosam.lab.models import MODELS
    from zosam.lab.radius import TABLE

    kinds: dict[str, Mapping[str, object]] = {
        "optimizers": dict(sorted(OPTIMIZER.table.items())), "sparse methods": METHOD.table, "networks": MODELS,
        "data sets": DATA, "learning rates": SCHEDULES, "schedules of rho": TABLE,
    }  # fmt: skip
    if not output.is_plain:
        records = [(kind, name, thing) for kind, things in kinds.items() for name, thing in things.items()]
        output.write([{"kind": kind, "name": name, "summary": summary(thing)} for kind, name, thing in records])
        return
    rows: list[Cells | Text] = []
    for kind, things in kinds.items():
        rows.append(Text(kind, style="italic"))
        rows += [[Text(f"  {name}", style="bold"), summary(thing)] for name, thing in things.items()]
        rows.append(Text())
    show_table(console, [Column("name"), Column("", prose=True)], rows, head=False)


def demo(out: Path = Path("runs"), output: Printed = Output()) -> None:
    """Train a sparse network on the digits under SGD, SAM and ZO-SAM, and compare them: less than a minute.

    Args:
        out: Folder that holds the folders of all runs.
        output: In which form to print the comparison.
    """
    from zosam.lab.demo import demo

    demo(out, output)
