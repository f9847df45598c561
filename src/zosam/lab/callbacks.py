"""Who is told, while a training goes, how it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tick = Callable[[int, int], None]


def nobody(done: int, of: int) -> None:
    """Is told of steps or batches, and does nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that a training calls. What they raise ends it, and the same command goes on from the checkpoint."""

    tick: Tick = nobody
    """Is told after every step how many of how many are done."""
    on_steps: Callable[[dict[str, Any]], None] | None = None
    """Is told every `log_every` steps the means of the epoch so far: what a line of steps.csv says."""
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    """Is told after every epoch, when its checkpoint is written, what a line of epochs.csv says."""
    on_test: Tick = nobody
    """Is told how many of how many batches of an evaluation are done."""
    on_kernels: Callable[[str], None] | None = None
    """Is told before the first step, of a run with `accelerate`, what the sparse kernels run and what they gain."""
