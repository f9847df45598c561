"""What a run will cost: what its like has cost, else the price of a pass times the passes that it promises."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from statistics import fmean

import torch

from zosam.lab import models
from zosam.lab.assemble import build_method, build_optimizer, load_data
from zosam.lab.paper.results_store import Book
from zosam.lab.run import Run
from zosam.lab.train import classification

PROBE = 16  # pictures in a step that is timed
SEEDS = 10  # other seeds of a run that are looked for


class Costs:
    """Seconds that runs will take on this machine."""

    def __init__(self, book: Book, data_dir: str | None = None) -> None:
        self.book, self.data_dir = book, data_dir
        self.prices: dict[tuple[str, str], tuple[float, int]] = {}

    def total(self, runs: Iterable[Run]) -> float:
        return sum(self.seconds(r) for r in runs)

    def seconds(self, run: Run) -> float:
        """Of the same run under other seeds, where some are finished; else an estimate, high where kernels help."""
        spent = [s for seed in range(SEEDS) if (s := self.spent(replace(run, seed=seed))) is not None]
        if spent:
            return fmean(spent)
        price, pictures = self.price(run)
        dummy = replace(run, model="digits_net", data="digits", seed=0)
        passes, schedules = work(dummy)
        return price * pictures * run.epochs * schedules * passes

    def spent(self, run: Run) -> float | None:
        """What a finished run has taken."""
        record = self.book.get(run)
        return None if record is None else float(sum(e["seconds"] for e in record.epochs))

    def price(self, run: Run) -> tuple[float, int]:
        """Seconds of a forward pass for one picture, a backward being two, and the pictures of an epoch."""
        kind = (str(run.model), str(run.data))
        if kind not in self.prices:
            with torch.random.fork_rng():
                source = load_data(run, self.data_dir)
                model = models.build(run.model, source.classes)
                x, y = next(source.train.epoch(0))
                closure = classification(model, x[:PROBE], y[:PROBE])
                times = []
                for _ in range(3):
                    began = time.perf_counter()
                    closure().backward()
                    times.append(time.perf_counter() - began)
            self.prices[kind] = min(times) / 3 / len(y[:PROBE]), len(source.train) * run.batch_size
        return self.prices[kind]


@cache
def work(run: Run) -> tuple[float, float]:
    """What a step takes, in forward passes, and how many times the schedule is gone through; any network tells."""
    with torch.random.fork_rng():
        source = load_data(run)
        model = models.build(run.model, source.classes)
        optimizer = build_optimizer(run, model, 1000)
        sparse = build_method(run, model, optimizer, source, steps := 1000)
    passes = optimizer.passes_per_step()
    return passes["forward"] + 2 * passes["backward"], 1.0 if sparse is None else sparse.total_steps(steps) / steps
