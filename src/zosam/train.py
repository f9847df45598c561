"""The training loop, one screen: a generator that yields what is known after every epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.data.batches import Batches
from zosam.optim import SharpnessAware

Place = Callable[[int], int]


def fit(
    model: nn.Module,
    optimizer: SharpnessAware,
    train: Batches,
    test: Batches,
    steps: int,
    *,
    start: int = 0,
    schedule: Callable[[int], float] = lambda place: 1.0,
    place: Place = lambda step: step,
    label_smoothing: float = 0.0,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Train from step `start` to `steps`; the caller logs, stops or checkpoints between two records.

    `schedule` gives the factor on each group's initial learning rate. `place` maps the step to its place in the
    schedule and in the data: the identity, unless a method rewinds.
    """
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    epoch_length, expected = len(train), -1
    batches: Iterator[tuple[Tensor, Tensor]] = iter(())
    seen, total, began = 0, 0.0, time.perf_counter()
    figures: dict[str, list[float]] = {}
    for step in range(start, steps):
        now = place(step)
        if now != expected or now % epoch_length == 0:
            batches = train.epoch(now // epoch_length)
            for _ in range(now % epoch_length):
                next(batches)
        expected = now + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule(now)
        model.train()
        x, y = next(batches)
        loss = optimizer.step(classification(model, x, y, optimizer.per_sample, label_smoothing))
        assert loss is not None
        total, seen = total + loss.item() * len(y), seen + len(y)
        for name, value in (optimizer.diagnostics or {}).items():
            figures.setdefault(name, []).append(value)
        tick()
        if (step + 1) % epoch_length == 0 or step + 1 == steps:
            seconds = time.perf_counter() - began
            yield {
                "epoch": -(-(step + 1) // epoch_length),
                "step": step + 1,
                "train_loss": total / seen,
                **evaluate(model, test),
                "lr": optimizer.param_groups[0]["lr"],
                "seconds": seconds,
                "images_per_second": seen / seconds,
                **optimizer.passes,
                **{name: fmean(values) for name, values in figures.items()},
            }
            seen, total, began, figures = 0, 0.0, time.perf_counter(), {}


def classification(
    model: nn.Module, x: Tensor, y: Tensor, per_sample: bool = False, label_smoothing: float = 0.0
) -> Callable[..., Tensor]:
    """The closure of a batch: its cross-entropy, on the samples to keep."""
    reduction = "none" if per_sample else "mean"

    def closure(keep: slice | Tensor = slice(None)) -> Tensor:
        return F.cross_entropy(model(x[keep]), y[keep], reduction=reduction, label_smoothing=label_smoothing)

    return closure


@torch.no_grad()
def evaluate(model: nn.Module, test: Batches) -> dict[str, float]:
    """Accuracy and mean loss on a split, in eval mode; the model's mode is put back."""
    was_training = model.training
    model.eval()
    right = loss = seen = 0.0
    for x, y in test:
        logits = model(x)
        right += float((logits.argmax(1) == y).sum())
        loss += float(F.cross_entropy(logits, y, reduction="sum"))
        seen += len(y)
    model.train(was_training)
    return {"test_accuracy": right / seen, "test_loss": loss / seen}
