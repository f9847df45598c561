"""Controls: perturbations that cost no extra pass, which any claim for an extra pass must beat."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.probes import momentum, require_momentum
from zosam.optim.schedules import Schedule


class RandomSAM(SharpnessAware):
    """Control: a random direction of length rho with a random sign, no extra pass. ZO-SAM without its probes."""

    def climb(self, closure: Closure) -> Tensor:
        space = self.coordinates
        size = sum(space.whole_sizes)
        u = torch.randn(size, generator=self.generator(), dtype=space.dtype, device=space.device)
        return self.unit(space.part(u))


class S2SAM(SharpnessAware):
    """Control: climb along the previous step's gradient, no extra pass (S²-SAM).

    Ji et al., "A single-step, sharpness-aware minimization is all you need to achieve efficient and accurate sparse
    training", NeurIPS 2024. The published code loses the stored gradient under torch 2 and does not mask it.
    """

    def climb(self, closure: Closure) -> Tensor | None:
        last = self.recall("gradient")
        return None if last is None else self.unit(last)

    def descend(self) -> None:
        self.remember("gradient", self.grads())


class MSAM(SharpnessAware):
    """Control: look ahead against the momentum, θ − ρ v/‖v‖, no extra pass (Momentum-SAM).

    Becker et al., "Momentum-SAM: sharpness aware minimization without computational overhead", 2024. Between steps
    the weights are the clean ones here, so evaluation and checkpoints need no care.
    """

    def __init__(self, base: Optimizer, rho: float | Schedule = 0.05, seed: int = 0) -> None:
        super().__init__(base, rho, seed)
        require_momentum(base, "MSAM")

    def climb(self, closure: Closure) -> Tensor | None:
        speed = momentum(self.base, self.coordinates)
        return None if speed is None else -self.unit(speed)
