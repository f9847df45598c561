"""SAM: climb along the gradient."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure, part_of_batch
from zosam.optim.schedules import Schedule


class SAM(SharpnessAware):
    """Sharpness-aware minimization: the gradient at θ + ρ g/‖g‖, where g is the gradient at θ.

    Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR 2021. Weight decay is
    the base's, at θ; the first code put it into the loss, hence into g as well. With `batch_fraction` = 1/n, g is
    taken from every n-th sample: still a true gradient, at a fraction of the cost. On several ranks g is that of the
    joined batch; with `per_rank` each climbs along its own (the paper's m-sharpness), and the ascent sends nothing.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        batch_fraction: float = 1.0,
        seed: int = 0,
        *,
        per_rank: bool = False,
    ) -> None:
        super().__init__(base, rho, seed)
        self.part, self.per_rank = part_of_batch(batch_fraction), per_rank

    def climb(self, closure: Closure) -> Tensor:
        return self.unit(self.clean_gradient(closure, self.part))

    def passes_per_step(self) -> dict[str, float]:
        passes = 1.0 + self._passes.share(self.part)
        return {"forward": passes, "backward": passes}
