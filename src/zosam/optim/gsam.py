"""GSAM: SAM that also closes the gap between the loss and its perturbed value."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule


class GSAM(SharpnessAware):
    """Surrogate-gap SAM: descend g_p − α g⊥, where g⊥ is the part of g orthogonal to g_p, the gradient at θ + ε.

    Zhuang et al., "Surrogate gap minimization improves sharpness-aware training", ICLR 2022. The paper lets rho follow
    the learning rate: pass `rho=zosam.schedules.Proportional(rho_max, lr_max, rho_min, lr_min)`. With `per_rank` each
    rank climbs along its own gradient; what is handed down is made of the gradients of all.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        alpha: float = 0.4,
        per_rank: bool = False,
        scale: Metric | Scale | None = None,
    ) -> None:
        if not alpha >= 0:
            raise ValueError(f"alpha must be 0 or more, not {alpha}")
        super().__init__(base, rho, scale=scale)
        self.alpha, self.per_rank = alpha, per_rank
        self._clean: Tensor | None = None  # the gradient at θ, while a step is under way

    def climb(self, closure: Closure) -> Tensor:
        clean = self.clean_gradient(closure)
        self._clean = self.shared(clean) if self.per_rank else clean
        return self.along_gradient(clean)

    def descend(self) -> None:
        if self._clean is not None:
            perturbed = self.grads()
            along = self.active.unit(perturbed)
            orthogonal = self._clean - self.active.dot(self._clean, along) * along
            self.hand_down(perturbed - self.alpha * orthogonal)
            self._clean = None

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 2.0, "backward": 2.0}
