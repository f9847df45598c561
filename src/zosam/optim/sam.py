"""SAM: climb along the gradient."""

from __future__ import annotations

from torch import Tensor

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure


class SAM(SharpnessAware):
    """Sharpness-aware minimization: the gradient at θ + ρ g/‖g‖, with g the gradient at θ."""

    def climb(self, closure: Closure) -> Tensor:
        self.gradient(closure)
        return self.grads()

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 2.0, "backward": 2.0}
