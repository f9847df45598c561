"""The training loop, one screen: a generator that yields what is known after every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.distributed.ranks import ALONE, Ranks
from zosam.lab.callbacks import Tick, nobody
from zosam.lab.data.batches import Batches
from zosam.lab.precision import Overflow, Precision
from zosam.optim import SharpnessAware

Place = Callable[[int], int]


@dataclass
class Sums:
    """What an epoch has added up so far; a checkpoint in the middle of an epoch takes it along."""

    seen: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    figures: dict[str, list[float]] = field(default_factory=dict)
    waiting: list[tuple[Tensor, int]] = field(default_factory=list)
    """Losses that are still on the device, and of how many pictures each is: to read one makes the device wait."""

    def add(self, loss: Tensor, samples: int) -> None:
        self.waiting.append((loss, samples))
        self.seen += samples

    def settled(self) -> Sums:
        """The same, with every loss read; to wait for them is part of the training's time."""
        began = time.perf_counter()
        if self.waiting:
            losses, samples = zip(*self.waiting, strict=True)
            for loss, count in zip(torch.stack(losses).tolist(), samples, strict=True):
                self.loss += loss * count
            self.waiting.clear()
        self.seconds += time.perf_counter() - began
        return self

    def clear(self) -> None:
        self.seen, self.loss, self.seconds, self.cpu_seconds, self.figures = 0, 0.0, 0.0, 0.0, {}


def fit(
    model: nn.Module,
    optimizer: SharpnessAware,
    train: Batches,
    test: Batches,
    steps: int,
    *,
    start: int = 0,
    sums: Sums | None = None,
    schedule: Callable[[float], float] | None = None,
    place: Place = lambda step: step,
    label_smoothing: float = 0.0,
    precision: Precision | None = None,
    test_every: int = 1,
    tick: Callable[[], None] = lambda: None,
    pause: Callable[[], None] = lambda: None,
    on_test: Tick = nobody,
) -> Iterator[dict[str, Any]]:
    """Train from step `start` to `steps`; the caller logs, stops or checkpoints between two records.

    A record is of `test_every` epochs, and ends with a test; the last one may be of fewer.
    `schedule` gives the learning rate after so many epochs; without one it is left alone. `place` maps the step to its
    place in the schedule and in the data: the identity, unless a method rewinds. `pause` is called wherever the
    training may be broken off inside an epoch, after a step or between two batches of an evaluation: who goes on later
    with that `start` and the `sums` of then loses nothing.
    """
    precision = Precision() if precision is None else precision
    epoch_length, expected = len(train), -1
    batches: Iterator[tuple[Tensor, Tensor]] = iter(())
    so_far = Sums() if sums is None else sums

    def record(step: int) -> dict[str, Any]:
        return {
            "epoch": -(-step // epoch_length),
            "step": step,
            "train_loss": so_far.loss / so_far.seen,
            **evaluate(model, test, pause, optimizer.ranks, on_test),
            "lr": optimizer.param_groups[0]["lr"],
            "seconds": so_far.seconds,
            "cpu_seconds": so_far.cpu_seconds,  # fewer than seconds on one thread: others had the core meanwhile
            "images_per_second": so_far.seen / so_far.seconds,
            **optimizer.passes,
            **{name: fmean(values) for name, values in so_far.figures.items()},
        }

    def ends_a_record(step: int) -> bool:
        return step % (test_every * epoch_length) == 0 or step == steps

    if so_far.seen and ends_a_record(start):  # it was broken off between the last step and the end of the evaluation
        yield record(start)
        so_far.clear()
    began, cpu_began = time.perf_counter(), time.process_time()
    for step in range(start, steps):
        now = place(step)
        if now != expected or now % epoch_length == 0:
            batches = train.epoch(now // epoch_length)
            for _ in range(now % epoch_length):
                next(batches)
        expected = now + 1
        if schedule is not None:
            for group in optimizer.param_groups:
                group["lr"] = schedule(now / epoch_length)
        model.train()
        try:
            x, y = next(batches)
        except RuntimeError:  # a worker that reads pictures was stopped, maybe with us; the step has not begun
            if optimizer.ranks.world == 1:
                pause()
            raise
        with on_batch(x):
            closure = classification(model, x, y, optimizer.per_sample, label_smoothing, precision, optimizer.ranks)
            loss = take_step(optimizer, closure, precision)
        so_far.add(loss, len(y) * optimizer.ranks.world)
        for name, value in (optimizer.diagnostics or {}).items():
            so_far.figures.setdefault(name, []).append(value)
        so_far.seconds += time.perf_counter() - began
        so_far.cpu_seconds += time.process_time() - cpu_began
        if ends_a_record(step + 1):
            so_far.settled()
        tick()
        pause()
        if ends_a_record(step + 1):
            yield record(step + 1)
            so_far.clear()
        # evaluations and checkpoints are not counted as training
        began, cpu_began = time.perf_counter(), time.process_time()


@contextmanager
def on_batch(x: Tensor) -> Iterator[None]:
    """Lets an error say on what it came."""
    try:
        yield
    except Exception as error:
        error.add_note(f"on {len(x)} pictures of {tuple(x.shape[1:])}")
        raise


def take_step(optimizer: SharpnessAware, closure: Callable[..., Tensor], precision: Precision) -> Tensor:
    """One step, again with a smaller scale where gradients do not fit into fp16; its loss."""
    while True:
        try:
            loss = optimizer.step(closure)
        except Overflow:
            precision.overflowed()
        else:
            assert loss is not None
            precision.stepped()
            return loss


def classification(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    per_sample: bool = False,
    label_smoothing: float = 0.0,
    precision: Precision | None = None,
    ranks: Ranks = ALONE,
) -> Callable[..., Tensor]:
    """The closure of a batch: its cross-entropy, on the samples to keep. The loss itself is fp32 in any precision."""
    reduction, how = "none" if per_sample else "mean", Precision() if precision is None else precision

    def closure(keep: slice | Tensor = slice(None)) -> Tensor:
        with how.autocast():
            logits = model(x[keep])
        loss = F.cross_entropy(logits.float(), y[keep], reduction=reduction, label_smoothing=label_smoothing)
        how.backward(loss, model.parameters(), ranks)
        return loss

    return closure


@torch.no_grad()
def evaluate(
    model: nn.Module,
    test: Batches,
    pause: Callable[[], None] = lambda: None,
    ranks: Ranks = ALONE,
    tick: Tick = nobody,
) -> dict[str, float]:
    """Accuracy and mean loss on a split, over the parts that all ranks have of it; the model's mode is put back."""
    was_training = model.training
    model.eval()
    right = loss = seen = 0.0
    found: list[Tensor] = []
    try:
        for done, (x, y) in enumerate(test, 1):
            with on_batch(x):
                logits = model(x)
                found.append(torch.stack([(logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")]))
            seen += len(y)
            tick(done, len(test))
            if ranks.world == 1:  # ranks pause together, and may have different numbers of batches
                pause()
    finally:
        model.train(was_training)
    for batch in torch.stack(found).tolist() if found else ():  # read at the end, so that the device need not wait
        right, loss = right + batch[0], loss + batch[1]
    right, loss, seen = ranks.sum(torch.tensor([right, loss, seen], dtype=torch.float64), "evaluation").tolist()
    return {"test_accuracy": right / seen, "test_loss": loss / seen}
