"""The command line: `zosam train`, `zosam list`, `zosam show`, `zosam demo`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from zosam.lab.locks import Busy
from zosam.lab.paper import commands
from zosam.lab.paper.answers import evidence
from zosam.lab.preempt import Preempted
from zosam.lab.radius import Radius
from zosam.lab.record import read_record
from zosam.lab.run import Run, run
from zosam.lab.settings import Chosen
from zosam.lab.terminal import Cells, Column, Output, Printed, plain, show_table
from zosam.lab.where import Where
from zosam.names import summary

console = Console()
app = tyro.extras.SubcommandApp()
for command in (commands.table, commands.figure, evidence, commands.report):
    app.command(command)


@app.command
def train(
    what: Annotated[Run, tyro.conf.arg(name="")],
    out: Path = Path("runs"),
    where: Annotated[Where, tyro.conf.arg(name="")] = Where(),
) -> None:
    """Train one network; the same command again goes on where it stopped, and does nothing when it is done.

    It ends with code 0 when done, 2 if something is wrong, 75 after SIGTERM (run it again), 130 after Ctrl-C.

    Args:
        what: What to train.
        out: Folder that holds the folders of all runs.
        where: Where and how to train.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(what.folder, total=None)
        record = run(what, out, tick=lambda done, of: progress.update(task, completed=done, total=of), **vars(where))
        progress.update(task, completed=record.last["step"], total=record.last["step"])
    show(record.path)


@app.command(name="list")
def list_(output: Printed = Output()) -> None:
    """Every optimizer, sparse method, network, data set and learning-rate schedule, with one line each.

    Args:
        output: In which form to print them.
    """
    from zosam.lab.data import DATA
    from zosam.lab.learning_rate import SCHEDULES
    from zosam.lab.models import MODELS
    from zosam.optim import OPTIMIZERS
    from zosam.sparse import METHODS

    kinds: dict[str, Mapping[str, object]] = {
        "optimizers": OPTIMIZERS, "sparse methods": METHODS, "networks": MODELS, "data sets": DATA,
        "learning rates": SCHEDULES,
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


@app.command
def show(path: Annotated[Path, tyro.conf.Positional], output: Printed = Output()) -> None:
    """How a run was made and how it ended.

    Args:
        path: The run's folder.
        output: In which form to print it; JSON holds every epoch, CSV has a line for each.
    """
    if not (path / "record.json").exists():
        begun = (path / "run.json").exists()
        raise ValueError(f"{path} {'has no finished epoch yet' if begun else 'is not a run folder'}")
    record = read_record(path)
    if not output.is_plain:
        output.write(record["epochs"] if output.csv else [record])
        return
    last = record["epochs"][-1]
    best = max(record["epochs"], key=lambda e: e["test_accuracy"])
    what, defaults = Run.read(record["run"]), Run().description
    rows: list[Cells | Text] = []
    for field, value in what.description.items():
        shown = getattr(what, field, value) if isinstance(value, str) else value  # the shortest spelling
        mark = "" if defaults.get(field) == value else "  (not the default)"
        rows.append([plain(f"  {field}"), plain(f"{shown}{mark}")])
    rows.append(Text())
    rows.append(["  status", record["status"]])
    rows.append(["  epochs, steps", f"{last['epoch']}, {last['step']:,}"])
    rows.append(
        ["  test accuracy", f"{last['test_accuracy']:.2%} at the end (best epoch: {best['test_accuracy']:.2%})"]
    )
    if "ema_test_accuracy" in last:
        rows.append(["  of the averaged weights", f"{last['ema_test_accuracy']:.2%} at the end"])
    rows.append(["  loss", f"train {last['train_loss']:.4f}, test {last['test_loss']:.4f}"])
    rows.append(["  sparsity", f"{last['sparsity']:.2%}"])
    rows.append(["  passes", f"{last['forward']:,.0f} forward, {last['backward']:,.0f} backward"])
    rows.append(["  training time", f"{sum(e['seconds'] for e in record['epochs']):.1f} s"])
    rows.append(["  made with", plain(", ".join(f"{k} {v}" for k, v in record["made_with"].items()))])
    console.print(plain(f"{path}\n"), style="bold", highlight=False)
    show_table(console, [Column("field"), Column("", prose=True)], rows, head=False)


@app.command
def demo(out: Path = Path("runs"), output: Printed = Output()) -> None:
    """Train a sparse network on the digits under SGD, SAM and ZO-SAM, and compare them: about a minute.

    Args:
        out: Folder that holds the folders of all runs.
        output: In which form to print the comparison.
    """
    from zosam.lab.demo import demo

    demo(out, output)


@app.command
def export(
    path: Annotated[Path, tyro.conf.Positional],
    form: Literal["compressed", "dense", "onnx"] = "compressed",
    out: Path | None = None,
    data_dir: str | None = None,
    model: str | None = None,
) -> None:
    """Write the network of a finished run as compressed or dense safetensors, or as ONNX.

    Args:
        path: The run's folder.
        form: compressed holds active weights and one bit per weight; dense a plain state_dict; onnx the network.
        out: Folder for the file; by default the run's.
        data_dir: Where data sets lie, for the example picture that ONNX needs.
        model: The network, module:function, if it is your own: a record alone does not make its code run.
    """
    from zosam.lab import models
    from zosam.lab.assemble import load_data
    from zosam.lab.run import finished
    from zosam.sparse.save import export

    record = finished(path)
    example = next(iter(load_data(record.run, data_dir).test))[0][:1] if form == "onnx" else None
    own = None if model is None else models.build(model, record.classes)
    file = export(record.load(own), out or path, form, masks=record.masks() or None, example=example)
    console.print(f"{file}  {file.stat().st_size:,} bytes", highlight=False)


@app.command
def serve_bench(
    path: Annotated[Path, tyro.conf.Positional],
    batches: tuple[int, ...] = (1, 8, 64),
    threads: int = 1,
    model: str | None = None,
) -> None:
    """How fast the network of a finished run serves: on the sparse kernels, in dense torch and in onnxruntime.

    Args:
        path: The run's folder.
        batches: Batch sizes.
        threads: For all three.
        model: The network, module:function, if it is your own: a record alone does not make its code run.
    """
    from zosam.lab.serve import bench

    console.print(bench(path, batches, threads, model), highlight=False)


@app.command
def doctor() -> None:
    """Which sparse kernels this machine runs, and why."""
    from zosam.kernels import doctor

    console.print("\n".join(doctor()), highlight=False)


def get(name: Annotated[str, tyro.conf.Positional], data_dir: Path | None = None) -> None:
    """Download cifar10, cifar100 or cifar10-c from its official address; stopped, it goes on where it was.

    Args:
        name: Which data set.
        data_dir: Where to; else $ZOSAM_DATA, else ~/.cache/zosam.
    """
    from zosam.lab.data.download import get

    console.print(f"{name} is in {get(name, data_dir)}", highlight=False)


def corrupt(
    data_dir: Path | None = None,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    seed: int = 0,
    processes: int | None = None,
) -> None:
    """Make CIFAR-10-C, 19 corruptions at 5 severities, from CIFAR-10's test set; files that are there are kept.

    Args:
        data_dir: Where CIFAR-10 lies; else $ZOSAM_DATA, else ~/.cache/zosam.
        out: Folder for the files; by default CIFAR-10-C beside CIFAR-10.
        only: Some of the corruptions, by name.
        seed: Seed of all noise.
        processes: How many at once; by default one per core.
    """
    from zosam.lab.data.corrupt import generate

    console.print(f"CIFAR-10-C is in {generate(data_dir, out, only, seed, processes)}", highlight=False)


@app.command(name="data")
def data(
    action: Annotated[
        Annotated[Any, tyro.conf.subcommand(name="get", constructor=get)]
        | Annotated[Any, tyro.conf.subcommand(name="corrupt", constructor=corrupt)],
        tyro.conf.arg(name=""),
    ],
) -> None:
    """Get data sets, and make CIFAR-10-C."""


registry = tyro.constructors.ConstructorRegistry()


@registry.primitive_rule
def chosen(field: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """How a command line writes what is chosen by name: `rigl:every=50`. The run itself reads it."""
    if field.type not in (Chosen, Radius):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME[:KEY=VALUE,...]",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, Chosen),
        str_from_instance=lambda value: [value.default],
    )


def main() -> None:
    try:
        app.cli(prog="zosam", registry=registry, description="Sparse training that is cheap, robust and real.")
    except KeyboardInterrupt as stop:
        console.print(f"\n{stop}" if str(stop) else "\nStopped. The same command goes on.", highlight=False)
        sys.exit(130)
    except Preempted as stop:
        console.print(f"\n{stop}")
        sys.exit(stop.code)
    except (ValueError, OSError, FloatingPointError, ImportError, Busy) as error:
        Console(stderr=True).print(plain(f"zosam: {error}"), style="red", highlight=False)
        sys.exit(2)
