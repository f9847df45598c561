"""ESAM: SAM that perturbs some tensors only and descends on the samples that are hurt most."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.graphs import frozen
from zosam.optim.passes import Closure
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule
from zosam.optim.snapshot import compiles


class ESAM(SharpnessAware):
    """Efficient SAM: perturb a share β of the tensors by ρ/β, descend on the share γ of samples whose loss rose most.

    Du et al., "Efficient sharpness-aware minimization for improved training of neural networks", ICLR 2022. Both
    savings are on by default (the published code has them off), no weight gradient is computed for tensors left out
    (where nothing is compiled or sharded, and the closure asks for none by itself), and at least one tensor and one
    sample stay. The closure returns one loss per sample and takes `keep`. On several ranks each keeps γ of its own
    samples; with `per_rank` each climbs along its own gradient too.
    """

    per_sample: ClassVar[bool] = True
    _differentiates = False  # whether closures ask by themselves for gradients of any weight, as a penalty does

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        beta: float = 0.5,
        gamma: float = 0.5,
        per_rank: bool = False,
        scale: Metric | Scale | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(base, rho, scale=scale, seed=seed)
        for name, value in (("beta", beta), ("gamma", gamma)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {value}")
        self.beta, self.gamma, self.per_rank = beta, gamma, per_rank

    def climb(self, closure: Closure) -> Tensor:
        space = self.active
        chosen = self.numbers("tensors").uniform(len(space.params)) < self.beta
        chosen[0] |= not bool(chosen.any())
        pairs = list(zip(space.params, chosen.tolist(), strict=True))
        shards, compiled = space.shards.world > 1, compiles()  # one wants all gradients, what is compiled would be anew
        left_out = [] if shards or compiled or self._differentiates else [p for p, c in pairs if not c]
        try:
            with frozen(left_out):
                losses = self.gradient(closure, local=True)
            lost = bool(left_out) and any(p.grad is None for p, c in pairs if c)  # as torch's old checkpoints do
        except RuntimeError as error:
            if not left_out or "require" not in str(error):
                raise
            lost = True
        if lost:
            self._differentiates = True
            self._passes.begin_again()
            return self.climb(closure)
        gradient = space.gather([p.grad if c else None for p, c in pairs]) / self.loss_scale()
        direction = self.along_gradient(gradient if self.per_rank else self.shared(gradient)) / self.beta
        if self.gamma < 1:
            with self.displaced(direction):
                look = self._passes.evaluate(closure, as_with_gradient=compiled and not shards)
                rise = look - losses  # a factor on the loss does not change their order
            self._passes.agreed(rise)
            self.keep = rise.topk(max(1, round(self.gamma * len(rise)))).indices
        return direction

    def passes_per_step(self) -> dict[str, float]:
        look = 1.0 if self.gamma < 1 else 0.0
        return {"forward": 1 + look + self.gamma, "backward": 1 + self.gamma}
