"""LookSAM: climb every k steps, and reuse in between what climbing has changed."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule


class LookSAM(SharpnessAware):
    """SAM every k steps; else g + α (‖g‖/‖v‖) v, with v the part of the last SAM gradient orthogonal to g.

    Liu et al., "Towards efficient and scalable sharpness-aware minimization", CVPR 2022. The decomposition is global,
    over all parameters, as in the paper (some ports split it per tensor), and steps between really are one pass; α is
    0.7 unless given. With `per_rank` each rank climbs along its own gradient; v is made of the gradients of all.
    """

    alpha: float = 0.7  # unless given

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        k: int = 5,
        alpha: float | None = None,
        per_rank: bool = False,
        scale: Metric | Scale | None = None,
    ) -> None:
        super().__init__(base, rho, scale=scale)
        if k < 1:
            raise ValueError(f"k must be 1 or more, not {k}")
        if alpha is not None and k == 1:
            raise ValueError(f"alpha={alpha:g} has no effect where every step climbs: leave it out, or take k above 1")
        self.k, self.alpha, self.per_rank = k, self.alpha if alpha is None else alpha, per_rank
        if not self.alpha >= 0:
            raise ValueError(f"alpha must be 0 or more, not {alpha}")
        self._clean: Tensor | None = None  # the gradient at θ, while a SAM step is under way

    def climb(self, closure: Closure) -> Tensor | None:
        self._clean = None
        if self.steps % self.k:
            return None
        clean = self.clean_gradient(closure)
        self._clean = self.shared(clean) if self.per_rank else clean
        return self.along_gradient(clean)

    def descend(self) -> None:
        gradient = self.grads()
        if self._clean is not None:
            g = self.active.unit(self._clean)
            self.remember("orthogonal", gradient - self.active.dot(gradient, g) * g)
            self._clean = None
            return
        v = self.recall("orthogonal")
        size = self.active.norm(gradient)
        if v is not None and bool(self.active.norm(v) > 1e-6 * size):  # less is rounding, not a direction
            self.hand_down(gradient + self.alpha * size * self.active.unit(v))

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 1 + 1 / self.k, "backward": 1 + 1 / self.k}
