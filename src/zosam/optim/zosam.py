"""ZO-SAM: climb along a zero-order estimate of the gradient, so that a step needs one backward only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.pair import worst_of_graphs
from zosam.optim.passes import Closure
from zosam.optim.probes import (
    Central,
    Decision,
    Gaussian,
    Momentum,
    Pair,
    Probe,
    Rademacher,
    Subspace,
    require_momentum,
)
from zosam.optim.scale import Metric, Scale
from zosam.optim.schedules import Schedule

ONE, DIFFERENCE = Gaussian(1), Central()  # the defaults: frozen, so that all may share them


class ZOSAM(SharpnessAware):
    """Zero-order SAM: two forward passes instead of a backward find where to climb.

    With u_i random over the active weights, ĝ = (1/m) Σ (L(θ+δu_i) − L(θ−δu_i)) / 2δ · u_i; the gradient is then
    taken at θ + ρ ĝ/‖ĝ‖. Ji et al., "ZO-SAM: zero-order sharpness-aware minimization for efficient sparse training".
    With one direction the estimate is ±u: a random direction with a chosen sign (compare `RandomSAM`). Departs from
    Algorithm 1 in that lengths are those of the active weights, and that the probes are as far away as the two
    candidates; `ZOSAM.paper` does not.

    - `probe`: what to probe along: Gaussian(m), Rademacher(m), Momentum(), LastGradient(), Subspace(k), Coordinates(),
      or a function of the optimizer that gives vectors over its active weights.
    - `decide`: how the losses there choose: Central(radius | delta, batch_fraction), Worst(batch_fraction) or Pair().
    - `every`: keep the direction found for that many steps.
    - `scale`: None, "filter" or "element": see `Scale`.
    """

    matters: ClassVar[float] = 1e-3  # a random direction must be far longer than a gradient to change anything

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        probe: Probe = ONE,
        decide: Decision = DIFFERENCE,
        every: int = 1,
        scale: Metric | Scale | None = None,
        seed: int = 0,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more, not {every}")
        if not callable(probe) or not isinstance(decide, Decision):
            raise TypeError(
                "probe is a part such as Gaussian(1), or a function of the optimizer; decide is Central(), Worst() or"
                f" Pair(); not {probe!r} and {decide!r}"
            )
        super().__init__(base, rho, scale=scale, seed=seed)
        if isinstance(probe, (Momentum, Subspace)):
            require_momentum(base, f"{probe}")
        self.probe, self.decide, self.every = probe, decide, every
        self._probed = 1  # how many probes a function has given last

    @classmethod
    def fast(cls, base: Optimizer, rho: float | Schedule = 0.05, *, seed: int = 0) -> ZOSAM:
        """The cheapest steps that still look at the loss: probed on an eighth of the batch, kept for two steps.

        The direction is one of signs. In the second step the choice is of the batch before: benchmarks/signs.py.
        """
        return cls(base, rho, probe=Rademacher(1), decide=Central(batch_fraction=1 / 8), every=2, seed=seed)

    @classmethod
    def paper(
        cls,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        delta: float = 1e-3,
        directions: int = 1,
        *,
        seed: int = 0,
    ) -> PaperZOSAM:
        """Algorithm 1 to the letter: see `PaperZOSAM`."""
        return PaperZOSAM(base, rho, delta=delta, directions=directions, seed=seed)

    # --- where to climb ----------------------------------------------------------------------------------------------

    def climb(self, closure: Closure) -> Tensor:
        kept = self._kept()
        if kept is None:
            kept = self._estimate(closure)
            self._keep(kept)
        return self.along(kept)

    def estimate(self, closure: Closure) -> Tensor:
        """What the probes make of the gradient, in units of the scale: T times the gradient, on average."""
        try:
            return self._estimate(closure)
        finally:
            self._perturbation.restore()

    def _estimate(self, closure: Closure) -> Tensor:
        """The same; the weights are left where the last probe was, from where the step goes on."""
        probes = self.probes()
        found = self.decide(self, probes, closure)
        return found / len(probes) if isinstance(self.probe, Gaussian) and len(probes) > 1 else found

    def probes(self) -> Sequence[Tensor]:
        """The vectors to probe along in this step."""
        found = list(self.probe(self))
        if not found:
            raise ValueError(f"the probe {self.probe!r} gave no vector to probe along")
        self._probed = len(found)
        return found

    def last_gradients(self, n: int) -> list[Tensor]:
        """Up to n gradients that the steps before have found, the newest first."""
        found = (self.recall(f"gradient {i}") for i in range(n))
        return [v for v in found if v is not None]

    # --- which gradient to hand down ---------------------------------------------------------------------------------

    def update(self, closure: Closure) -> None:
        if not isinstance(self.decide, Pair) or self._kept() is not None:
            super().update(closure)
            return
        self.require_full_weights("Pair()")
        probes = self.probes()
        offsets = [self.offset(self.along(u)) for u in probes]
        self._look_at(offsets[0])
        chosen = worst_of_graphs(self, offsets, closure)
        self._keep(chosen.sign * probes[chosen.probe])
        self.descend()

    def descend(self) -> None:
        n = getattr(self.probe, "keeps", 0)
        for i, gradient in reversed(list(enumerate(self.last_gradients(n - 1)))):
            self.remember(f"gradient {i + 1}", gradient)
        if n:
            self.remember("gradient 0", self.grads())

    def passes_per_step(self) -> dict[str, float]:
        probes = self.probe.count(self) if hasattr(self.probe, "count") else self._probed
        return {"forward": 1.0 + self.decide.passes(probes) / self.every, "backward": 1.0}

    def _kept(self) -> Tensor | None:
        return self.recall("direction") if self.steps % self.every else None

    def _keep(self, direction: Tensor) -> None:
        if self.every > 1:
            self.remember("direction", direction)


class PaperZOSAM(SharpnessAware):
    """ZO-SAM as printed: Algorithm 1 to the letter, for those who want to study it.

    u is normal over all weights, pruned ones too; ĝ = (1/m) Σ (L((θ+δu_i)⊙M) − L((θ−δu_i)⊙M)) / 2δ · u_i, and the
    gradient is taken at (θ + ρ ĝ/‖ĝ‖)⊙M, so the perturbation is about ρ√(active/all) long. δ is a factor on u itself.
    """

    matters: ClassVar[float] = ZOSAM.matters
    takes_metric: ClassVar[bool] = False

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule = 0.05,
        *,
        delta: float = 1e-3,
        directions: int = 1,
        seed: int = 0,
    ) -> None:
        if directions < 1 or not delta > 0:
            raise ValueError(f"directions must be 1 or more and delta above 0, not {directions} and {delta}")
        super().__init__(base, rho, seed=seed)
        self.delta, self.directions = delta, directions

    def climb(self, closure: Closure) -> Tensor:
        space = self.active
        pruned = space.n_weights - sum(space.full_sizes)
        drawn = [self.draw(str(i), more=pruned) for i in range(self.directions)]
        differences = []
        for u in drawn:
            near = self.offset(u[: len(space)], self.delta)
            up, down = self.losses_around(near, closure)
            differences.append(up - down)
        self._perturbation.restore()
        estimate = torch.zeros_like(drawn[0])
        for u, difference in zip(drawn, self.agreed(differences), strict=True):
            estimate = estimate + u * (difference / (2 * self.delta * self.directions))
        return space.unit(estimate)[: len(space)]

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 1.0 + 2 * self.directions, "backward": 1.0}
