"""Gradient variance: how much the gradients of a training, or of batches at fixed weights, differ from their mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.lab.measure.untouched import Masks, active, untouched
from zosam.machine import double
from zosam.optim.base import SharpnessAware
from zosam.optim.masked import masks_of
from zosam.optim.passes import Closure, Passes
from zosam.optim.vector import ActiveWeights


@dataclass
class Spread:
    """Mean and variance of vectors that come one by one, by Welford's update; only their mean is kept."""

    count: int = 0
    squares: float = 0.0
    norms: float = 0.0
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, vector: Tensor) -> None:
        self.count += 1
        before = vector - self.mean
        self.mean = self.mean + before / self.count
        self.squares += float(double(before * (vector - self.mean)).sum())
        self.norms += float(vector.norm())

    def figures(self) -> dict[str, float]:
        """Trace of the covariance, mean norm, norm of the mean; what so few vectors cannot say is left out."""
        if not self.count:
            return {}
        found = {"gradient_norm": self.norms / self.count, "gradient_mean_norm": float(self.mean.norm())}
        return found if self.count < 2 else {"gradient_variance": self.squares / (self.count - 1), **found}


class GradientVariance:
    """Watches the gradients that the optimizer steps with; `take()` gives the figures since the last `take()`.

    `gradient_variance` is the trace of the covariance over steps: the sum over weights of the unbiased variance. It
    holds the noise of the batches and the drift of the weights alike; `variance_at` has the noise alone. A pruned
    weight counts with gradient 0, so one that is pruned throughout adds nothing, and one that comes or goes adds
    what its mask has done to its gradient. Training is the same to the bit, watched or not.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        if isinstance(optimizer, SharpnessAware):
            self._hook = optimizer.base.register_step_pre_hook(self._look)
        else:  # its closure, if it has one, makes the gradient within the step: look after it
            self._hook = optimizer.register_step_post_hook(self._look)
        self._spread = Spread()

    def take(self) -> dict[str, float]:
        """`gradient_variance`, `gradient_norm` (the mean), `gradient_mean_norm` (of the mean gradient); begin anew."""
        spread, self._spread = self._spread, Spread()
        return spread.figures()

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self._spread))

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        self._spread = Spread(**state | {"mean": state["mean"].to(device)})

    def close(self) -> None:
        """Watch no more."""
        self._hook.remove()

    @torch.no_grad()
    def _look(self, *_: object) -> None:
        params = [p for group in self._optimizer.param_groups for p in group["params"]]
        if any(p.grad is not None for p in params):  # else a method has skipped this step
            masks = masks_of(params)
            grads = [p.grad * masks[p] if p.grad is not None and p in masks else p.grad for p in params]
            self._spread.add(ActiveWeights(params, {}).gather(grads))


def variance_at(model: nn.Module, closures: Iterable[Closure], masks: Masks | None = None) -> dict[str, float]:
    """The same figures over the gradients of several batches at the weights of now, one closure for each batch.

    The model is in the mode in which it is handed over: in training mode BatchNorm adds the noise that training sees.
    """
    space, spread = active(model, masks), Spread()
    passes = Passes(lambda: space.params)
    with untouched(model, training=None):
        for closure in closures:
            passes.gradient(closure)
            spread.add(space.gather([p.grad for p in space.params]))
    if spread.count < 2:
        raise ValueError(f"a variance needs two batches or more, not {spread.count}")
    return spread.figures()
