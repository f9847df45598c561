"""Methods whose masks change every so many steps, until some step."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from zosam.sparse.base import Sparsity
from zosam.sparse.masks import Masks


class Periodic(Sparsity):
    """A random mask that changes every `every` steps until step `until`; without `until` it never stops changing."""

    until_share: ClassVar[float] = 0.75  # the share of a training after which the paper leaves the masks alone
    at_start: ClassVar[bool] = False  # whether step 0 changes the masks as well

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.9,
        *,
        every: int = 100,
        until: int | None = None,
        **settings: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more steps, not {every}")
        if until is not None and until < 1:
            raise ValueError(f"until must be a step after the start, not {until}")
        self.every, self.until = every, until
        super().__init__(model, optimizer, sparsity, **settings)

    def choose(self) -> Masks:
        return self.best({n: self.noise(n, w.detach()) for n, w in self.weights.items()}, self.counts)

    def due(self) -> bool:
        """Whether the masks change at this step."""
        started = self.steps > 0 or self.at_start
        return started and self.steps % self.every == 0 and (self.until is None or self.steps < self.until)
