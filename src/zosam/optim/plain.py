"""No perturbation at all: the base optimizer under the same interface."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure


class SGD(SharpnessAware):
    """The base optimizer alone, one forward and one backward: what every other method is measured against.

    It is called after the base of the paper, and wraps any other as well.
    """

    def __init__(self, base: Optimizer, rho: float = 0.0, seed: int = 0) -> None:
        super().__init__(base, rho=0.0, seed=seed)

    def climb(self, closure: Closure) -> Tensor | None:
        return None
