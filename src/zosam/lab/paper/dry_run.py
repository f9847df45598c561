"""What runs would take: how many hours on this device, by ten real steps of each kind, and how much disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from zosam.lab import models
from zosam.lab.assemble import build_optimizer, load_data
from zosam.lab.checkpoints import Progress
from zosam.lab.data import Batches, DataError
from zosam.lab.device import about, placed, wait_for
from zosam.lab.ema import Ema
from zosam.lab.paper.cost import work
from zosam.lab.precision import Precision
from zosam.lab.report.finding import duration
from zosam.lab.run import Run
from zosam.lab.terminal import Column, show_table
from zosam.lab.train import classification, take_step
from zosam.lab.where import Where
from zosam.sparse.flops import layer_flops
from zosam.sparse.prunable import prunable

STEPS, WARM, PATIENCE = 10, 2, 60.0  # steps that are timed, after some that are not; seconds that they may take in all


class Kind(NamedTuple):
    """Runs that cost the same but for their optimizer, method and length."""

    model: str
    data: str
    batch_size: int
    precision: str
    base: str
    ema: bool

    @classmethod
    def of(cls, run: Run) -> Kind:
        return cls(str(run.model), str(run.data), run.batch_size, run.precision, run.base, run.ema is not None)

    def __str__(self) -> str:
        return f"{self.model} on {self.data}, batches of {self.batch_size}, {self.precision}"


@dataclass(frozen=True)
class Probe:
    """Ten steps of plain SGD or AdamW on a dense network of a kind."""

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
    """Time steps of the run's base optimizer on the device, its data included."""
    plain = replace(run, optimizer="sgd", method="dense", rho=None, seed=0)
    with where.here() as device:
        source = load_data(plain, where.data_dir, workers=where.workers, device=device)
        model = placed(models.build(plain.model, source.classes), device)
        ema = None if plain.ema is None else Ema(model, plain.ema)
        optimizer = build_optimizer(plain, model, STEPS)
        precision = Precision(plain.precision, device)
        if where.compile:
            model.compile()
        stream, pictures = _for_ever(source.train), plain.batch_size

        def step() -> None:
            x, y = (part[:pictures] for part in next(stream))
            take_step(optimizer, classification(model, x, y, precision=precision), precision)
            if ema is not None:
                ema.update(model)

        pictures = min(pictures, 2)
        first = _seconds(step, 1, device) / pictures  # of a picture, at the most
        pictures = int(min(plain.batch_size, max(2, PATIENCE / (STEPS + WARM) / first)))
        _seconds(step, WARM, device)
        spent = _seconds(step, STEPS, device)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        return Probe(
            per_picture=spent / STEPS / pictures,
            timed=pictures,
            train=len(source.train) * plain.batch_size,
            test=len(source.test) * len(next(iter(source.test))[1]),
            checkpoint=Progress(model, optimizer, None, STEPS, done=1, ema=ema).size(),
            weights=weights,
            network=sum(t.numel() * t.element_size() for t in model.state_dict().values()),
            prunable=sum(w.numel() for w in prunable(model).values()),
            operations=layer_flops(model, {}, next(stream)[0][:1])[1],
        )


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
    why: str = ""


def plans(runs: Sequence[Run], where: Where) -> list[Plan]:
    """What the runs would take here, kind by kind."""
    kinds: dict[Kind, list[Run]] = {}
    for run in runs:
        kinds.setdefault(Kind.of(run), []).append(run)
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
        few = f" (timed with {plan.timed})" if plan.timed != plan.kind.batch_size else ""
        row[1] += few
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
    for why in dict.fromkeys(plan.why for plan in found if plan.why):
        console.print(f"Not timed: {why}", highlight=False, markup=False, soft_wrap=True)


def gigabytes(size: float) -> str:
    """A size for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _for_ever(train: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    return itertools.chain.from_iterable(train.epoch(epoch) for epoch in itertools.count())


def _seconds(step: Callable[[], None], times: int, device: torch.device) -> float:
    began = time.perf_counter()
    for _ in range(times):
        step()
    wait_for(device)
    return time.perf_counter() - began
