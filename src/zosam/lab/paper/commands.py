"""`zosam table`, `zosam figure` and `zosam report`: say what is missing and what it costs, run it, show the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.text import Text

from zosam import files
from zosam.lab.device import choose
from zosam.lab.paper.dry_run import plans, show_plans
from zosam.lab.paper.figure import FIGURES, load_figure
from zosam.lab.paper.measured import measured
from zosam.lab.paper.notes import CORRUPTED, SPEED
from zosam.lab.paper.results_store import Book, add_lines, line
from zosam.lab.paper.show import SPEEDS, chosen, filled, records, show
from zosam.lab.paper.speed import measure_missing
from zosam.lab.paper.sweep import with_seeds
from zosam.lab.paper.table import load
from zosam.lab.paper.train_missing import lacking, train_missing
from zosam.lab.paper.value import OF_CORRUPTED, measure_corruptions
from zosam.lab.run import Run
from zosam.lab.shelf import unread
from zosam.lab.terminal import Cells, Column, Output, Printed, begin, console, progress_bar, show_table
from zosam.lab.where import Where

Tier = Literal["tiny", "small", "medium", "paper"]
Elsewhere = Annotated[Where, tyro.conf.arg(name="")]


def table(
    name: Annotated[str, tyro.conf.Positional],
    tier: Tier = "tiny",
    seeds: int = 3,
    only: str | None = None,
    printed_only: bool = False,
    change: tuple[str, ...] = (),
    budget: str | None = None,
    train: bool = True,
    dry_run: bool = False,
    shard: str | None = None,
    ray: tuple[str, ...] | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    out: Path = Path("runs"),
    results: tuple[Path, ...] = (),
    save: Path | None = None,
    where: Elsewhere = Where(),
    output: Printed = Output(),
) -> None:
    """One of the paper's tables beside our numbers: train the runs that are missing, then compare.

    It can be stopped and run again at any moment, also by several processes at once on the same folder: a finished
    run is never trained again.

    Args:
        name: 1 to 6, or table1 to table6.
        tier: tiny trains on the digits for minutes; small and medium on CIFAR at CPU scale; paper is the real thing.
        seeds: Seeds per cell.
        only: A regular expression on "row / column", such as "(SNIP|MEST).*CIFAR-10 9".
        printed_only: Leave out rows that are not in the paper: controls, and our own options.
        change: Set fields of every run, such as epochs=1 precision=bf16: other trainings, and the table says so.
        budget: Start no run that would not end within this time, such as 30m or 2h.
        train: With --no-train only show what is there.
        dry_run: Train nothing: time ten steps of each kind of run, and estimate hours and disk space for all of them.
        shard: Take only part i of n of the runs, written i/n, for job arrays.
        ray: Train on a Ray cluster: its address, or no word for one on this machine.
        cpus: Cores for each trial on the cluster.
        gpus: GPUs for each trial on the cluster.
        out: Folder that holds the folders of all runs.
        results: JSON-lines files with results of runs that are not in the folder.
        save: Write the finished runs of this table to a JSON-lines file.
        where: Where and how to train.
        output: In which form to print the table.
    """
    idle = {
        "--budget": budget is not None and (dry_run or not train or ray is not None),
        "--ray": ray is not None and (dry_run or not train),
        "--shard": shard is not None and not (dry_run or train),
        "--save": save is not None and dry_run,
        "--cpus": cpus != 1 and ray is None,
        "--gpus": gpus != 0 and ray is None,
    }
    refuse(idle)
    say = output.aside(console)
    content = load(name if name.startswith("table") else f"table{name}", tier, change)
    cells, book = chosen(content, only, printed_only), Book.open(out, results)
    runs = with_seeds((c.run for c in cells if c.run is not None), seeds)
    if dry_run:
        _plan(runs, book, f"{content.name}, tier {tier}", shard, where, output, say)
        return
    if train:
        train_missing(runs, book, f"{content.name}, tier {tier}", budget, shard, ray, cpus, gpus, where, say)
        corrupted = (c.run for c in cells if c.measure in OF_CORRUPTED and c.run is not None)
        measure_corruptions(with_seeds(corrupted, seeds), book, tier, where, say)
        timed = {c.run: content.pacemaker(c) for c in cells if c.measure == SPEEDS and c.run is not None}
        measure_missing({run: beside for run, beside in timed.items() if beside is not None}, book, where, say)
    found = filled(content, book, seeds, only, printed_only)
    if output.is_plain:
        show(found, console)
    else:
        output.write(records(found))
    if save is not None:
        save_lines(save, runs, book, say)


def figure(
    name: Annotated[str, tyro.conf.Positional],
    tier: Tier = "tiny",
    seeds: int = 1,
    budget: str | None = None,
    train: bool = True,
    out: Path = Path("runs"),
    results: tuple[Path, ...] = (),
    into: Path = Path("figures"),
    form: Literal["png", "svg", "pdf"] = "png",
    where: Elsewhere = Where(),
    output: Printed = Output(),
) -> None:
    """A figure of the paper, or one of our own: train the runs that are missing, measure, and draw.

    Args:
        name: One of those that `zosam figure list` shows.
        tier: tiny trains on the digits for minutes; small and medium on CIFAR at CPU scale; paper is the real thing.
        seeds: Seeds per series.
        budget: Start no run that would not end within this time, such as 30m or 2h.
        train: With --no-train only use what is there.
        out: Folder that holds the folders of all runs.
        results: JSON-lines files with results of runs that are not in the folder.
        into: Folder for the numbers (JSON) and the pictures.
        form: Of the pictures, which need matplotlib: pip install 'zosam[report]'.
        where: Where and how to train.
        output: In which form to print what figures there are, or which files were written.
    """
    if name == "list":
        print_records([{"name": known, "title": load_figure(known, tier).title} for known in FIGURES], output)
        return
    refuse({"--budget": budget is not None and not train})
    say = output.aside(console)
    content, book = load_figure(name, tier), Book.open(out, results)
    if not content.runs:
        raise ValueError(f"the tier {tier} cannot make the figure {name}: take --tier small, medium or paper")
    runs = with_seeds(content.runs.values(), seeds)
    if train:
        train_missing(runs, book, f"{name}, tier {tier}", budget, None, None, 1, 0, where, say)
        if content.measure == "corruptions":
            measure_corruptions(runs, book, tier, where, say)
        if content.measure == "throughput":
            beside = content.runs[content.settings["reference"]]
            measure_missing(dict.fromkeys(content.runs.values(), beside), book, where, say)
    with progress_bar(say, "", transient=True) as progress:
        drawings = measured(content, book, seeds, where, begin(progress, f"measuring {name}"))
    if not drawings:
        raise ValueError(f"no run of {name} is finished: leave --no-train out, or give it more time")
    written = []
    for drawing in drawings:
        file = into / f"{tier}-{drawing['name']}.json"
        files.write_json(file, drawing)
        picture = _draw(drawing, file.with_suffix(f".{form}"), say)
        written.append({"title": drawing["title"], "numbers": str(file), "picture": str(picture or "")})
    print_records(written, output)


def report(
    out: Path = Path("report.html"),
    tier: Tier | None = None,
    seeds: int = 3,
    only: str | None = None,
    runs: Path = Path("runs"),
    results: tuple[Path, ...] = (),
    figures: Path = Path("figures"),
    stills: Path | None = None,
    output: Printed = Output(),
) -> None:
    """Make one HTML page of all results; it opens from disk and loads nothing from the network.

    It begins with what was found and accuracy against cost, both made from the runs, and shows what is kept of each
    layer; surfaces and feature maps come from the folder that `zosam figure` has filled.

    Args:
        out: The file to write.
        tier: Whose of the paper's tables and whose figures to show; by default those of every tier.
        seeds: Seeds per cell of the paper's tables.
        only: Runs to take, by a regular expression on "data, network, method sparsity, epochs, optimizer".
        runs: Folder that holds the folders of all runs.
        results: JSON-lines files with results of runs that are not in the folder.
        figures: Folder with the figures that `zosam figure` has made.
        stills: Folder for the page's figures as SVG; needs matplotlib: pip install 'zosam[report]'.
        output: In which form to print what was written.
    """
    from zosam.lab.paper.contents import contents
    from zosam.lab.report.page import write

    say, count = output.aside(console), sum(1 for _ in runs.glob("*/record.json"))
    say.print(f"reading {count:,} run{'s' * (count != 1)} in {runs} ...", highlight=False, markup=False, soft_wrap=True)
    if lost := unread(runs):
        say.print(lost, style="red", highlight=False, markup=False, soft_wrap=True)
    with say.status("reading") as shown:
        content = contents(Book.open(runs, results), figures, tier, seeds, only, shown.update)
    write(out, content)
    if stills is not None:
        for drawing in content.all_figures:
            _draw(drawing, stills / f"{drawing['name']}.svg", say)
    size, figure_count, table_count = out.stat().st_size, len(content.all_figures), len(content.tables)
    told = {"file": str(out), "bytes": size, "figures": figure_count, "tables": table_count}
    output.tell(f"{out}  {size:,} bytes: {figure_count} figures, {table_count} tables", told)


def _plan(
    runs: list[Run], book: Book, title: str, shard: str | None, where: Where, output: Output, say: Console
) -> None:
    found = plans(lacking(runs, book, title, shard, say), where)
    if output.is_plain:
        show_plans(found, console, choose(where.device))
    else:
        output.write([{**plan.kind._asdict(), **asdict(plan), "kind": str(plan.kind)} for plan in found])


def save_lines(
    path: Path, runs: list[Run], book: Book, say: Console, more: Mapping[Run, dict[str, Any]] | None = None
) -> None:
    """Add the runs to a file of lines; a run that is there already gets its new line. `more` stands in a run's line."""
    records = [r for run in runs if (r := book.get(run)) is not None and (r.path / "record.json").exists()]
    lines = {r.run.key: line(r, notes=[CORRUPTED, SPEED], more=(more or {}).get(r.run)) for r in records}
    say.print(f"{path}: {add_lines(path, lines)} runs", highlight=False)


def refuse(idle: Mapping[str, bool]) -> None:
    """Refuse options that were given and would have no effect beside the others."""
    for option, is_idle in idle.items():
        if is_idle:
            raise ValueError(f"{option} would have no effect beside the other options: leave it out")


def _draw(drawing: dict[str, Any], path: Path, say: Console) -> Path | None:
    """Draw it for print; without matplotlib say how to get it."""
    from zosam.lab.report.still import draw

    try:
        draw(drawing, path)
    except ImportError as error:
        say.print(f"{path} is not drawn: {error}", highlight=False, markup=False, soft_wrap=True)
        return None
    return path


def print_records(found: list[dict[str, Any]], output: Output) -> None:
    """A small table: the first column to look for, the others to read."""
    if not output.is_plain:
        output.write(found)
        return
    columns = [Column(key, rank, prose=key == "title") for rank, key in enumerate(found[0])]
    rows: list[Cells] = [[Text(str(first), style="bold"), *map(str, rest)] for first, *rest in map(dict.values, found)]
    show_table(console, columns, rows)
