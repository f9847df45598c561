"""What runs would take: how many hours on this device, by ten real steps of each kind, and how much disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from zosam.lab import data, models
from zosam.lab.assemble import assemble, load_data
from zosam.lab.checkpoints import Progress
from zosam.lab.data import Batches, Data, DataError
from zosam.lab.device import about, placed, wait_for
from zosam.lab.measure.throughput import affordable
from zosam.lab.paper.cost import work
from zosam.lab.report.finding import duration
from zosam.lab.run import Run
from zosam.lab.terminal import Column, show_table
from zosam.lab.where import Where
from zosam.sparse.flops import layer_flops
from zosam.sparse.prunable import prunable

STEPS, PATIENCE = 10, 60.0  # steps that are timed, and seconds that they may take in all, or fewer are


class Kind(NamedTuple):
    """Runs that cost the same but for their optimizer, method and length."""

    model: str
    data: str
    batch_size: int
    precision: str
    base: str
    ema: bool
    masks: str
    """On the sparse kernels their masks decide how fast they are; else it is empty."""

    @classmethod
    def of(cls, run: Run, where: Where) -> Kind:
        masks = f"{run.method} at {run.sparsity:.4g}" if _on_kernels(run, where) else ""
        return cls(str(run.model), str(run.data), run.batch_size, run.precision, run.base, run.ema is not None, masks)

    def __str__(self) -> str:
        masks = f", {self.masks}" if self.masks else ""
        return f"{self.model} on {self.data}, batches of {self.batch_size}, {self.precision}{masks}"


@dataclass(frozen=True)
class Probe:
    """Ten steps of plain SGD or AdamW on a network of a kind: dense, or on the sparse kernels with its first masks."""

    per_picture: float
    """Seconds of a step, for each of its pictures."""
    timed: int
    """Pictures in a step that was timed: fewer than in a real one where that would have taken minutes."""
    train: int
    test: int
    checkpoint: int
    """Bytes of a checkpoint of the base optimizer, without masks."""
    weights: int
    network: int
    """Bytes of all parameters, and of the trained network's file."""
    prunable: int
    operations: float
    """Of a forward pass of one picture, two for a multiplication and an addition, were every weight there."""
    noise: bool = False
    """Whether noise stood in for data that are not there."""

    def pictures(self, run: Run) -> float:
        """That a run sends forward in all: its passes, a backward being two, and each epoch's test, in all schedules
        that its method goes through."""
        passes, schedules = work(replace(run, model="digits_net", data="digits", seed=0))
        tests = self.test * (2 if run.ema is not None else 1)
        return (self.train * passes + tests) * run.epochs * schedules

    def hours(self, run: Run) -> float:
        """Of a whole run: a step of the base, which was timed, is a forward and a backward."""
        return self.per_picture / 3 * self.pictures(run) / 3600

    def disk(self, run: Run) -> int:
        """Bytes that a finished run leaves: two checkpoints, the network, its average and masks."""
        masks = 0 if run.method.name == "dense" else self.prunable
        own = 0 if run.optimizer.name == "sgd" else self.weights  # most methods remember one vector at the most
        averaged = 0 if run.ema is None else self.network
        return 2 * (self.checkpoint + masks + own) + self.network + averaged + masks // 8


def probe(run: Run, where: Where) -> Probe:
    """Time steps of the run's base optimizer on the device, its data included where they are there."""
    plain = replace(run, optimizer="sgd", rho=None, seed=0, method=run.method if _on_kernels(run, where) else "dense")
    with where.here() as device:
        source, noise = _data(plain, where, device)
        training = assemble(plain, where, device, source=source, steps=1000)
        model, stream = training.model, _for_ever(source.train)

        def seconds(pictures: int, times: int = 1) -> float:
            began = time.perf_counter()
            for _ in range(times):
                x, y = next(stream)
                training.step(x[:pictures], y[:pictures])
            wait_for(device)
            return time.perf_counter() - began

        pictures = affordable(seconds, plain.batch_size, PATIENCE / STEPS)
        steps = max(1, min(STEPS, int(PATIENCE / seconds(pictures))))  # a CPU in fp16 takes minutes for one
        spent = seconds(pictures, steps)
        size, masks = data.size_of(plain.data), sum(w.numel() for w in prunable(model).values())
        dense = placed(models.build(plain.model, source.classes), device)  # kernels would not be counted
        held = Progress(model, training.optimizer, training.sparse, STEPS, done=1, ema=training.ema).size()
        return Probe(
            per_picture=spent / steps / pictures,
            timed=pictures,
            train=size.train if size is not None else len(source.train) * plain.batch_size,
            test=size.test if size is not None else len(source.test) * len(next(iter(source.test))[1]),
            checkpoint=held - (0 if training.sparse is None else masks),
            weights=sum(p.numel() * p.element_size() for p in model.parameters()),
            network=sum(t.numel() * t.element_size() for t in model.state_dict().values()),
            prunable=masks,
            operations=layer_flops(dense, {}, next(stream)[0][:1])[1],
            noise=noise,
        )


def _on_kernels(run: Run, where: Where) -> bool:
    return where.accelerate and run.method.name != "dense"


def _data(run: Run, where: Where, device: torch.device) -> tuple[Data, bool]:
    """The run's data; where they are not there but of known size, noise."""
    try:
        return load_data(run, where.data_dir, workers=where.workers, device=device), False
    except DataError:
        size = data.size_of(run.data)
        if size is None:
            raise
        return data.stand_in(size, run.batch_size, device), True


@dataclass(frozen=True)
class Plan:
    """All runs of a kind, and what they would take; `why` says what hinders a probe."""

    kind: Kind
    runs: int
    seconds_per_step: float | None = None
    """Of the base optimizer on a dense network."""
    timed: int | None = None
    hours: float | None = None
    operations: float | None = None
    bytes: int | None = None
    noise: bool = False
    """Whether noise stood in for data that are not there: then to read them is not in the hours."""
    why: str = ""


def plans(runs: Sequence[Run], where: Where) -> list[Plan]:
    """What the runs would take here, kind by kind."""
    kinds: dict[Kind, list[Run]] = {}
    for run in runs:
        kinds.setdefault(Kind.of(run, where), []).append(run)
    return [_plan(kind, same, where) for kind, same in kinds.items()]


def _plan(kind: Kind, runs: Sequence[Run], where: Where) -> Plan:
    try:
        found = probe(runs[0], where)
    except DataError as error:
        return Plan(kind, len(runs), why=str(error))
    return Plan(
        kind,
        len(runs),
        seconds_per_step=found.per_picture * kind.batch_size,
        timed=found.timed,
        hours=sum(found.hours(run) for run in runs),
        operations=found.operations * sum(found.pictures(run) for run in runs),
        bytes=sum(found.disk(run) for run in runs),
        noise=found.noise,
    )


def show_plans(found: Sequence[Plan], console: Console, device: torch.device) -> None:
    """A line for each kind, and the sum."""
    columns = [
        Column("runs", right=True),
        Column("network, data, batch", prose=True),
        Column("s/step", right=True),
        Column("each", 1, right=True),
        Column("all", right=True),
        Column("Pflop", 2, right=True),
        Column("disk", 3, right=True),
    ]
    rows: list[list[str]] = []
    for plan in found:
        row = [str(plan.runs), str(plan.kind)]
        if plan.hours is None or plan.operations is None or plan.bytes is None:
            rows.append([*row, "?", "?", "?", "?", "?"])
            continue
        few = f"timed with {plan.timed}" if plan.timed != plan.kind.batch_size else ""
        told = ", ".join(filter(None, (few, "on noise" if plan.noise else "")))
        row[1] += f" ({told})" if told else ""
        each, everything = (duration(3600 * hours) for hours in (plan.hours / plan.runs, plan.hours))
        row += [f"{plan.seconds_per_step:.3g}", each, everything]
        rows.append([*row, f"{plan.operations / 1e15:,.0f}", gigabytes(plan.bytes)])
    show_table(console, columns, rows)
    seconds = 3600 * sum(plan.hours or 0.0 for plan in found)
    total = gigabytes(sum(plan.bytes or 0 for plan in found))
    petaflops = sum(plan.operations or 0.0 for plan in found) / 1e15
    console.print(
        f"\n{sum(plan.runs for plan in found)} runs: {duration(seconds)} on one device like this"
        f" ({about(device)['device_name']}), {duration(seconds / 4)} on four; {petaflops:,.0f} Pflop; {total} of disk.",
        highlight=False,
        soft_wrap=True,
    )
    if any(plan.noise for plan in found):
        text = (
            "On noise: the data are not there. They are counted by their known size; to read them takes no time here."
        )
        console.print(text, highlight=False, soft_wrap=True)
    for why in dict.fromkeys(plan.why for plan in found if plan.why):
        console.print(f"Not timed: {why}", highlight=False, markup=False, soft_wrap=True)


def gigabytes(size: float) -> str:
    """A size for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _for_ever(train: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    return itertools.chain.from_iterable(train.epoch(epoch) for epoch in itertools.count())
