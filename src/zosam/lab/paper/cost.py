"""What a run will cost: what its like has cost, else the price of a pass times the passes that it promises."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cache, cached_property
from statistics import fmean
from typing import Literal

import torch

from zosam.lab.assemble import assemble
from zosam.lab.device import CPU, wait_for
from zosam.lab.paper.results_store import Book
from zosam.lab.run import Run
from zosam.lab.where import Where

PROBE = 16  # pictures in a step that is timed, where no kernels are to be chosen for its whole batch
STEPS = 1000  # of the schedule of a training that is put together to be asked or timed, not trained
SEEDS = 10  # other seeds of a run that are looked for
By = Literal["seconds", "cpu_seconds"]
CLOCKS = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}


class Costs:
    """Seconds that runs will take on this machine, as it is now; by "cpu_seconds", what they would if it were idle."""

    def __init__(self, book: Book, where: Where = Where(), by: By = "seconds") -> None:
        self.book, self.where, self.by = book, where, by
        self.prices: dict[Hashable, tuple[float, int]] = {}

    def total(self, runs: Iterable[Run]) -> float:
        return sum(self.seconds(r) for r in runs)

    def seconds(self, run: Run) -> float:
        """Of the same run under other seeds, where some are finished; else of its like; else an estimate."""
        spent = [s for seed in range(SEEDS) if (s := self.spent(replace(run, seed=seed))) is not None]
        if spent:
            return fmean(spent)
        passes, schedules = work(replace(run, model="digits_net", data="digits", seed=0))
        price, steps = self.likes.get(_kind(run)) or self.price(run)
        return price * passes * steps * run.epochs * schedules

    def spent(self, run: Run) -> float | None:
        """What a finished run has taken."""
        record = self.book.get(run)
        return None if record is None else float(sum(e.get(self.by, e["seconds"]) for e in record.epochs))

    @cached_property
    def likes(self) -> dict[Hashable, tuple[float, int]]:
        """Seconds of a forward pass, a backward being two, and steps of an epoch, of what is finished.

        By network, data, masks and batch size: under which optimizer does not matter, for passes are counted.
        """
        found: dict[Hashable, list[tuple[float, int]]] = defaultdict(list)
        for line in self.book.entries():
            last, spent = line["epochs"][-1], sum(e.get(self.by, e["seconds"]) for e in line["epochs"])
            passes = last["forward"] + 2 * last["backward"]
            found[_kind(Run.read(line["run"]))].append((spent / passes, round(last["step"] / last["epoch"])))
        return {kind: (fmean(p for p, _ in each), each[0][1]) for kind, each in found.items()}

    def price(self, run: Run) -> tuple[float, int]:
        """The same by timing a few steps: on the kernels, if the run will be trained on them."""
        kind = _kind(run) if self.where.accelerate else (run.model, run.data, run.batch_size)
        if kind not in self.prices:
            with self.where.here() as device:
                training = assemble(run, self.where, device, steps=STEPS)
                x, y = next(training.source.train.epoch(0))
                if not (self.where.accelerate and training.sparse is not None):
                    x, y = x[:PROBE], y[:PROBE]
                closure, clock, times = training.closure(x, y), CLOCKS[self.by], []
                for _ in range(4):
                    began = clock()
                    closure().mean().backward()
                    wait_for(device)
                    times.append(clock() - began)
            self.prices[kind] = min(times) / 3 * run.batch_size / len(y), len(training.source.train)
        return self.prices[kind]


def _kind(run: Run) -> Hashable:
    """What decides the price of a pass, and how many steps there are."""
    data = (
        {k: v for k, v in run.data.settings.items() if k != "validation"} if "train" in run.data.settings else run.data
    )
    return run.model, str(data), run.data.name, run.method.name, run.sparsity, run.batch_size


@cache
def work(run: Run) -> tuple[float, float]:
    """What a step takes, in forward passes, and how many times the schedule is gone through; any network tells."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would be about this small network, not about the run's own
        training = assemble(run, Where(), CPU, steps=STEPS)
    passes = training.optimizer.passes_per_step()
    return passes["forward"] + 2 * passes["backward"], training.steps / STEPS
