"""The demonstration: one small network on the digits, 90 % sparse, under three optimizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from torch import Tensor

from zosam.lab import data, terminal
from zosam.lab.assemble import assemble, load_data
from zosam.lab.device import CPU
from zosam.lab.measure.sharpness import sharpness
from zosam.lab.measure.throughput import ratios, seconds
from zosam.lab.record import Record
from zosam.lab.run import Run, run
from zosam.lab.terminal import Column, Output, plain, progress_bar, show_table
from zosam.lab.train import classification
from zosam.lab.watching import Watching
from zosam.lab.where import Where

T = TypeVar("T")
FORMS = {
    "accuracy": ".2%", "sparsity": ".2%", "forward": ",.0f", "backward": ",.0f", "speed": ".2f", "vs dense": ".2f",
    "sharpness": ".4f",
}  # fmt: skip
FAST: dict[str, Any] = {"accelerate": True, "device": "cpu"}  # the sparse kernels are for CPUs
CONTESTANTS = {"SGD": "sgd", "SAM": "sam", "ZO-SAM": "zosam"}


def demo(out: Path = Path("runs"), output: Output = Output()) -> None:
    """Train a small residual network on the digits with RigL at 90 % under SGD, SAM and ZO-SAM, and compare."""
    torch.set_num_threads(1)  # a network this small gains nothing from more, and loses much on a busy machine
    console = output.aside(terminal.console)
    console.print("A small residual network on the digits: RigL at 90 % sparsity, 15 epochs.\n")
    runs = {label: Run(optimizer=name) for label, name in CONTESTANTS.items()}
    records = {label: watched(label, what, out, console) for label, what in runs.items()}
    console.print("\nMeasuring speed (turn about, medians) and sharpness ...\n")
    with progress_bar(console, transient=True) as progress:
        task = progress.add_task("", total=2 * len(runs) + 1)

        def shown(told: str, work: Callable[..., T], *given: Any) -> T:
            progress.update(task, description=told, refresh=True)
            found = work(*given)
            progress.advance(task)
            return found

        steps = {label: shown(f"{label}: measuring its kernels", one_step, what) for label, what in runs.items()}
        contestants = {**steps, "dense": one_step(runs["SGD"], fast=False)}
        times = shown("a step of each, turn about", seconds, contestants, 30)
        rises = {label: shown(f"{label}: sharpness", rise, record) for label, record in records.items()}
    speed, gain = ratios(times, "SGD"), ratios(times, "dense")
    found = [
        {
            "optimizer": label, "accuracy": record.last["test_accuracy"], "sparsity": record.last["sparsity"],
            "forward": record.last["forward"], "backward": record.last["backward"], "speed": speed[label],
            "vs dense": gain[label], "sharpness": rises[label], "run": str(record.path),
        }
        for label, record in records.items()
    ]  # fmt: skip
    if not output.is_plain:
        output.write(found)
        return
    columns = [Column(""), *(Column(name, rank, right=True) for rank, name in enumerate(FORMS, 1))]
    rows = [[str(row["optimizer"]), *(f"{row[name]:{form}}" for name, form in FORMS.items())] for row in found]
    show_table(console, columns, rows)
    console.print(
        "\naccuracy: on the test set. forward, backward: passes in the whole training. speed: pictures per second, as a"
        " ratio to SGD; vs dense: as a ratio to SGD on PyTorch's dense kernels. sharpness: the largest rise of the"
        " training loss within 0.05 of the weights. One seed on 360 test pictures: differences of a percent are noise."
        "\n",
        style="dim",
    )
    for label, record in records.items():
        console.print(f"{label:>8}  {record.path}", highlight=False, soft_wrap=True)
    folder = "" if out == Path("runs") else f" --runs {out}"
    last = f"\nLook into one:  zosam show RUN_FOLDER      All on one page:  zosam report{folder}"
    console.print(plain(f"{last}\nTrain your own:  zosam train --help"), soft_wrap=True)


def watched(label: str, what: Run, out: Path, console: Console) -> Record:
    """The run, with a progress bar."""
    with Watching(console) as shown:
        return run(what, out, **FAST, **vars(shown.callbacks(label, f"{label:>8}")))


def one_step(what: Run, fast: bool = True) -> Callable[[], object]:
    """A training step of that run on a batch of its own, to be timed; on the sparse kernels if `fast`."""
    with torch.random.fork_rng(devices=[]):
        training = assemble(what, Where(device="cpu", accelerate=fast), CPU)
    x, y = next(training.source.train.epoch(0))
    return lambda: training.step(x, y)


def rise(record: Record) -> float:
    """The sharpness of a trained network on the whole training set, over its active weights."""
    model = record.load().eval()
    train = load_data(record.run).train
    assert isinstance(train, data.Tensors)
    masks: dict[Tensor, Tensor] = {model.get_parameter(name): mask for name, mask in record.masks().items()}
    return sharpness(model, classification(model, train.x, train.y), steps=5, masks=masks)
