"""LTH: train, prune the smallest weights, wind the others back, train again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.base import Counts, Sparsity, total
from zosam.sparse.prunable import plain_state
from zosam.sparse.state import Masks


class LTH(Sparsity):
    """Static: train dense, prune the smallest weights of all layers, rewind the rest, repeat (lottery tickets).

    Level 0 trains the dense network for `steps` steps, the whole schedule. Then, `levels` times: prune by |θ| over
    all layers, set what survives, and BatchNorm, back to step `rewind`, clear the optimizer's state, and train on
    from there to the end of the schedule. Every level keeps the same share of the one before, about 80 % unless
    `levels` is given, and the last hits the target exactly. Frankle, Dziugaite, Roy, Carbin, "Linear mode
    connectivity and the lottery ticket hypothesis", ICML 2020. `schedule_step` tells a training loop where in the
    schedule and the data it is, `total_steps` how long it takes. `rewind` is 3 % of the steps unless given.
    """

    budget: ClassVar[str] = "global"
    per_layer: ClassVar[bool] = False
    patterns: ClassVar[tuple[str, ...]] = ("block",)
    draws: ClassVar[bool] = False
    sharded: ClassVar[bool] = True
    nothing_at_zero: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        steps: int | None = None,
        rewind: int | None = None,
        levels: int | None = None,
        **settings: Any,
    ) -> None:
        if steps is None:
            raise ValueError(
                "LTH trains again and again: pass steps=, the length of one training (epochs * len(loader))"
            )
        rewind = int(0.03 * steps) if rewind is None else rewind
        if not 0 <= rewind < steps:
            raise ValueError(f"rewind must be a step of the training, 0 to {steps - 1}, not {rewind}")
        if levels is not None and levels < 1:
            raise ValueError(f"levels must be 1 or more, not {levels}")
        self.period, self.rewind = steps, rewind
        super().__init__(model, optimizer, sparsity, **settings)
        left = self.n_active / sum(w.numel() for w in self.weights.values())
        self.levels = max(1, math.ceil(math.log(left) / math.log(0.8))) if levels is None else levels
        self.saved: dict[str, Tensor] = self._snapshot()  # and again at step `rewind`

    def choose(self) -> Masks:
        return {n: torch.ones_like(w, dtype=torch.bool) for n, w in self.weights.items()}

    def after_step(self) -> None:
        if self.steps == self.rewind:
            self.saved = self._snapshot()
        elif self.level() > 0 and self.schedule_step(self.steps) == self.rewind and self.steps <= self._last():
            self.commit(self.smallest_pruned(self._left()))
            self._go_back()

    def level(self) -> int:
        """How many times the network has been pruned."""
        if self.steps < self.period:
            return 0
        return min(self.levels, 1 + (self.steps - self.period) // (self.period - self.rewind))

    def expected_active(self) -> int:
        return total(self._left())

    def schedule_step(self, step: int) -> int:
        if step < self.period:
            return step
        if step >= self.total_steps(self.period):  # trained to the end
            return self.period
        return self.rewind + (step - self.period) % (self.period - self.rewind)

    def total_steps(self, steps: int) -> int:
        return steps + self.levels * (steps - self.rewind)

    def _left(self) -> Counts:
        share = self.level() / self.levels
        return self.counts_along(lambda size, kept: size * (kept / size) ** share)

    def _last(self) -> int:
        """The step of the last pruning."""
        return self.period + (self.levels - 1) * (self.period - self.rewind)

    def _snapshot(self) -> dict[str, Tensor]:
        return {n: t.detach().clone() for n, t in plain_state(self.model).items() if isinstance(t, Tensor)}

    def _go_back(self) -> None:
        now = plain_state(self.model)
        for name, value in self.saved.items():
            now[name].copy_(value)
        self.settle(self.weights)
        for optimizer in self.optimizers:
            optimizer.state.clear()
        if (wrapper := self.sharpness) is not None:
            wrapper.forget()

    def extra_state(self) -> dict[str, Any]:
        return {"saved": {n: t.clone() for n, t in self.saved.items()}}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.saved = {n: t.clone() for n, t in state["saved"].items()}
