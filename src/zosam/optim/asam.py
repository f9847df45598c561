"""ASAM: SAM in a ball that scales with each weight."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.passes import Closure
from zosam.optim.sam import SAM
from zosam.optim.schedules import Schedule


class ASAM(SAM):
    """Adaptive SAM: the gradient at θ + ρ T²g/‖Tg‖ with T = |θ| + eta, so that scaling the weights changes nothing.

    Kwon et al., "ASAM: adaptive sharpness-aware minimization for scale-invariant learning", ICML 2021. The published
    code leaves biases out of T by their name; an optimizer sees no names, so T covers every parameter here.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.5,
        eta: float = 0.01,
        batch_fraction: float = 1.0,
        seed: int = 0,
        *,
        per_rank: bool = False,
    ) -> None:
        super().__init__(base, rho, batch_fraction, seed, per_rank=per_rank)
        if eta < 0:
            raise ValueError(f"eta must be 0 or more, not {eta}")
        self.eta = eta

    def climb(self, closure: Closure) -> Tensor:
        gradient, scale = self.clean_gradient(closure, self.part), self.coordinates.read().abs() + self.eta
        return scale * self.unit(scale * gradient)
