"""`zosam train` and `zosam show`: make a run, and look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from zosam.lab.claim import no_run
from zosam.lab.measure.convergence import spent
from zosam.lab.record import kernels_gained, read_record
from zosam.lab.report.finding import duration
from zosam.lab.run import Run, run
from zosam.lab.terminal import Cells, Column, Output, Printed, console, plain, show_table
from zosam.lab.watching import Watching
from zosam.lab.where import Where
from zosam.sparse.report import layer_table
from zosam.sparse.save import read_tensors, saved_masks


def train(
    what: Annotated[Run, tyro.conf.arg(name="")],
    out: Path = Path("runs"),
    where: Annotated[Where, tyro.conf.arg(name="")] = Where(),
    output: Printed = Output(),
) -> None:
    """Train one network. The same command again resumes it, and does nothing once it is finished.

    Exit codes: 0 done, 2 something is wrong, 75 stopped by SIGTERM (run it again), 130 stopped by Ctrl-C.

    Args:
        what: What to train.
        out: Folder that holds the folders of all runs.
        where: Where and how to train.
        output: In which form to print how it ended.
    """
    say = output.aside(console)
    with Watching(say) as shown:
        record = run(what, out, **vars(shown.callbacks(what.folder)), **vars(where))
    if not shown.begun:
        say.print("finished before: nothing is left to train", highlight=False)
    show(record.path, output)


def show(path: Annotated[Path, tyro.conf.Positional], output: Printed = Output()) -> None:
    """How a run was made, how it ended, and what is kept of each layer.

    Args:
        path: The run's folder.
        output: In which form to print it; JSON holds every epoch, CSV has a line for each.
    """
    if not (path / "record.json").exists():
        raise no_run(path)
    record = read_record(path)
    if not output.is_plain:
        output.write(record["epochs"] if output.csv else [record])
        return
    last = record["epochs"][-1]
    best = max(record["epochs"], key=lambda e: e["test_accuracy"])
    what, defaults = Run.read(record["run"]), Run().description
    rows: list[Cells | Text] = []
    for field, value in what.description.items():
        if field == "schema":
            continue
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
    forward, backward = last["forward"], last["backward"]
    cost = f"{spent([last])[0]:,.0f}, a backward counting two"
    rows.append(["  passes", f"{cost}: {forward:,.0f} forward, {backward:,.0f} backward"])
    for name, unit in (("wall time", "seconds"), ("CPU time", "cpu_seconds")):
        if all(unit in e for e in record["epochs"]):
            rows.append([f"  {name}", duration(sum(e[unit] for e in record["epochs"]))])
    made = dict(record["made_with"])
    rows.append(["  sparse kernels", plain(_kernels(made.pop("kernels", "none"), path))])
    if made.get("device") == "cpu":  # its name is said as that of the CPU
        made = {k: v for k, v in made.items() if k not in ("device", "device_name")}
    rows.append(["  made with", plain(", ".join(f"{k} {v}" for k, v in made.items()))])
    console.print(plain(f"{path}\n"), style="bold", highlight=False)
    show_table(console, [Column("field"), Column("", prose=True)], rows, head=False)
    console.print(plain(_kept(path)), highlight=False, soft_wrap=True)


def _kernels(build: str, path: Path) -> str:
    """Which kernels a training ran on, whether it was asked to, and what they gained."""
    if not (path / "kernels.json").exists():
        return build if build != "none" else "none: trained without --accelerate"
    if build == "none":
        return "none: with --accelerate, but torch was faster"
    gained = kernels_gained(path)
    return f"{build}, by --accelerate" + (f": {gained}" if gained else "")


def _kept(path: Path) -> str:
    """What is kept of each layer of a trained network; nothing if it has no masks."""
    if not (path / "sparse.safetensors").exists():
        return ""
    masks, tensors = saved_masks(path / "sparse.safetensors"), read_tensors(path / "model.safetensors")[0]
    dense = {name: (weight, "dense") for name, weight in tensors.items() if weight.dim() > 1 and name not in masks}
    return f"\n{layer_table(masks, dense)}"
