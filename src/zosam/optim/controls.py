"""Controls: perturbations that cost no extra pass, which any claim for an extra pass must beat."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.probes import momentum, require_momentum
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule


class Unperturbed(SharpnessAware):
    """The base optimizer alone, one forward and one backward: what every other method is measured against.

    The command line and records call it `sgd`, after the base of the paper; it wraps any other as well.
    """

    def __init__(self, base: Optimizer) -> None:
        super().__init__(base, rho=0.0)

    @classmethod
    def method(cls) -> str:
        return "SGD"

    def climb(self, closure: Closure) -> Tensor | None:
        return None


class RandomSAM(SharpnessAware):
    """Control: a random direction of length rho with a random sign, no extra pass. ZO-SAM without its probes."""

    matters: ClassVar[float] = 1e-3  # of random directions far longer ones change nothing than of gradients

    def climb(self, closure: Closure) -> Tensor:
        return self.along(self.draw())


class S2SAM(SharpnessAware):
    """Control: climb along the previous step's gradient, no extra pass (S²-SAM).

    Ji et al., "A single-step, sharpness-aware minimization is all you need to achieve efficient and accurate sparse
    training", NeurIPS 2024. The published code loses the stored gradient under torch 2 and does not mask it.
    """

    def __init__(self, base: Optimizer, rho: float | Schedule = 0.05, *, scale: Metric | Scale | None = None) -> None:
        super().__init__(base, rho, scale=scale)

    def climb(self, closure: Closure) -> Tensor | None:
        last = self.recall("gradient")
        return None if last is None else self.along_gradient(last)

    def descend(self) -> None:
        self.remember("gradient", self.grads())


class MSAM(SharpnessAware):
    """Control: look ahead against the momentum, θ − ρ v/‖v‖, no extra pass (Momentum-SAM).

    Becker et al., "Momentum-SAM: sharpness aware minimization without computational overhead", 2024. Between steps
    the weights are the clean ones here, so evaluation and checkpoints need no care. rho is by default the published
    code's, 0.3; its recipes go up to 3.
    """

    def __init__(self, base: Optimizer, rho: float | Schedule = 0.3, *, scale: Metric | Scale | None = None) -> None:
        super().__init__(base, rho, scale=scale)
        require_momentum(base, "MSAM")

    def climb(self, closure: Closure) -> Tensor | None:
        speed = momentum(self.base, self.active)
        return None if speed is None else -self.along_gradient(speed)
