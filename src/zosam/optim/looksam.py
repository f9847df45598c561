"""LookSAM: climb every k steps, and reuse in between what climbing has changed."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware, unit
from zosam.optim.passes import Closure
from zosam.optim.schedules import Schedule


class LookSAM(SharpnessAware):
    """SAM every k steps; else g + α (‖g‖/‖v‖) v, with v the part of the last SAM gradient orthogonal to g.

    Liu et al., "Towards efficient and scalable sharpness-aware minimization", CVPR 2022. The decomposition is global,
    over all parameters, as in the paper (some ports split it per tensor), and steps between really are one pass.
    """

    def __init__(
        self, base: Optimizer, rho: float | Schedule = 0.05, k: int = 5, alpha: float = 0.7, seed: int = 0
    ) -> None:
        super().__init__(base, rho, seed)
        if k < 1:
            raise ValueError(f"k must be 1 or more, not {k}")
        self.k, self.alpha = k, alpha
        self._clean: Tensor | None = None  # the gradient at θ, while a SAM step is under way

    def climb(self, closure: Closure) -> Tensor | None:
        self._clean = None
        if self.steps % self.k:
            return None
        self.gradient(closure)
        self._clean = self.grads()
        return unit(self._clean)

    def descend(self) -> None:
        gradient = self.grads()
        if self._clean is not None:
            g = unit(self._clean)
            self.remember("orthogonal", gradient - (gradient @ g) * g)
            self._clean = None
            return
        v = self.recall("orthogonal")
        if v is not None and bool(v.norm() > 1e-6 * gradient.norm()):  # less is rounding, not a direction
            self.hand_down(gradient + self.alpha * gradient.norm() * unit(v))

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 1 + 1 / self.k, "backward": 1 + 1 / self.k}
