"""Methods whose masks change every so many steps, until some share of the training is over."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from zosam.sparse.base import Sparsity
from zosam.sparse.state import Masks


class Periodic(Sparsity):
    """A random mask that changes every `every` steps, until a share `until` of the training is over.

    `steps` is the length of that training: all that a method needs to know of it.
    """

    until: float = 0.75  # the share of a training after which the paper leaves the masks alone
    at_start: ClassVar[bool] = False
    needs_length: ClassVar[bool] = True  # whether the schedule depends on the length of the training
    update_reads_gradient: ClassVar[bool] = True  # False where no update asks for `gradient`: saves the dense one

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        steps: int | None = None,
        every: int = 100,
        until: float | None = None,
        **settings: Any,
    ) -> None:
        if steps is None and (self.needs_length or until is not None):
            raise ValueError(
                f"{type(self).__name__} follows a schedule: pass steps=, the length of the training, such as"
                " epochs * len(loader)"
            )
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be the number of steps of a training, not {steps}")
        if every < 1:
            raise ValueError(f"every must be 1 or more steps, not {every}")
        if until is not None:
            self.until = until
        if not 0 < self.until <= 1:
            raise ValueError(f"until must be a share of the training, above 0 and at most 1, not {self.until}")
        self.every = every
        self.end = math.inf if steps is None else max(1, int(self.until * steps))  # the step from which masks stay
        if every >= self.end and not self.at_start:
            warnings.warn(
                f"{type(self).__name__} changes its masks every {every} steps and leaves them from step {self.end}"
                " on, so they never move on the way: pass a smaller every=",
                stacklevel=3,
            )
        super().__init__(model, optimizer, sparsity, **settings)

    def choose(self) -> Masks:
        return self.best({n: self.noise(n, w.detach()) for n, w in self.weights.items()}, self.n_active_by_layer)
