"""SAM: climb along the gradient."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.probes import part_of_batch
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule


class SAM(SharpnessAware):
    """Sharpness-aware minimization: the gradient at θ + ρ g/‖g‖, where g is the gradient at θ.

    Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR 2021. Weight decay is
    the base's, at θ; the first code put it into the loss, hence into g as well. With `batch_fraction` = 1/n, g is
    taken from every n-th sample: still a true gradient, at a fraction of the cost. On several ranks g is that of the
    joined batch; with `per_rank` each climbs along its own (the paper's m-sharpness), and the ascent sends nothing.
    SAM on norm layers only (SAM-ON) is SAM with `perturb=False` in the group of all others.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        batch_fraction: float = 1.0,
        per_rank: bool = False,
        scale: Metric | Scale | None = None,
    ) -> None:
        part_of_batch(batch_fraction)
        super().__init__(base, rho, scale=scale)
        self.batch_fraction, self.per_rank = batch_fraction, per_rank

    def climb(self, closure: Closure) -> Tensor:
        return self.along_gradient(self.clean_gradient(closure, part_of_batch(self.batch_fraction)))

    def passes_per_step(self) -> dict[str, float]:
        passes = 1.0 + self.batch_fraction
        return {"forward": passes, "backward": passes}


class ASAM(SAM):
    """Adaptive SAM: SAM with `scale="element"`, θ + ρ T²g/‖Tg‖ with T = |θ| + eta: scaling the weights changes nothing.

    Kwon et al., "ASAM: adaptive sharpness-aware minimization for scale-invariant learning", ICML 2021. The published
    code leaves biases and norms out of T by their name: give them a group with `"scale": None` for that.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.5,
        *,
        eta: float = 0.01,
        batch_fraction: float = 1.0,
        per_rank: bool = False,
    ) -> None:
        super().__init__(base, rho, batch_fraction=batch_fraction, per_rank=per_rank, scale=Scale("element", eta))
        self.eta = eta
