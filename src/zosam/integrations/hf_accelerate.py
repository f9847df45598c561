"""accelerate: one climb for all micro-batches that it accumulates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from zosam.integrations.windows import micro_batch, sharpness_aware
from zosam.optim.passes import Closure


@contextmanager
def accumulate(accelerator: Any, model: nn.Module, optimizer: Any, closure: Closure) -> Iterator[None]:
    """In the place of `accelerator.accumulate(model)`; model and optimizer are those of `accelerator.prepare`.

        for x, y in loader:
            closure = lambda: F.cross_entropy(model(x), y)
            with accumulate(accelerator, model, optimizer, closure):
                accelerator.backward(closure())
                optimizer.step()
                optimizer.zero_grad()

    The closure returns the loss of this micro-batch, without backward. The first micro-batch of a window climbs by it,
    and the body of every one runs at the point climbed to. An optimizer that never climbs is left alone.
    """
    climber = sharpness_aware(optimizer)
    if climber is not None and accelerator.sync_gradients:
        climber.restore()  # the window before is over, also where a scaler has skipped its step
    with accelerator.accumulate(model):
        if climber is None:
            yield
            return
        with micro_batch(climber, closure, scaler=accelerator.scaler):
            before = _gathered(climber)
            yield
            if not accelerator.sync_gradients and _gathered(climber) == before:
                raise RuntimeError(
                    "this micro-batch has left no gradient: accelerate runs step(closure) in the last micro-batch of a"
                    " window only, so call accelerator.backward(closure()), optimizer.step() and optimizer.zero_grad()"
                )


def _gathered(optimizer: Any) -> list[tuple[int, int]]:
    """What can tell whether gradients were added since."""
    params = (p for group in optimizer.param_groups for p in group["params"])
    return [(id(p.grad), p.grad._version) for p in params if p.grad is not None]
