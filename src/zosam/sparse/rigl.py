"""RigL: drop the smallest weights, grow where the gradient is largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.fsdp import whole
from zosam.optim import SharpnessAware
from zosam.sparse.base import NoGradient
from zosam.sparse.dense_gradients import DenseGradients
from zosam.sparse.dynamic import Dynamic
from zosam.sparse.state import Masks
from zosam.sparse.top_k import laid_out_like, top


class RigL(Dynamic):
    """Dynamic: drop the smallest weights, grow where the dense gradient is largest ("rigging the lottery").

    Evci et al., "Rigging the lottery: making all tickets winners", ICML 2020. As in the published code the update
    takes the place of a gradient step, starts at step 0, and a weight just dropped may grow again with its value and
    momentum. Under a sharpness-aware optimizer the gradient is the one at the perturbed point; with
    `growth_gradient="theta"` it is the one at θ, where the optimizer takes one there (SAM does, ZO-SAM does not).

    With `candidates`, a share of the pruned weights is drawn at random at every update, and weights grow where the
    gradient is largest among these and those just dropped; on the sparse kernels no other gradient is computed. As in
    Heddes et al., "Always-sparse training by growing connections with guided stochastic exploration", 2024, by uniform
    draws; with all of them it is RigL.
    """

    at_start: ClassVar[bool] = True
    steps_after_update: ClassVar[bool] = False
    nothing_at_zero: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        growth_gradient: str = "perturbed",
        candidates: float | None = None,
        **settings: Any,
    ) -> None:
        if candidates is not None and not 0 < candidates <= 1:
            raise ValueError(
                f"candidates must be a share of the pruned weights, above 0 and at most 1, not {candidates}"
            )
        if candidates is not None and settings.get("pattern") is not None:
            raise ValueError("candidates are single weights: leave out `pattern`, or `candidates`")
        if growth_gradient not in {"perturbed", "theta"}:
            raise ValueError(f'growth_gradient must be "perturbed" or "theta", not {growth_gradient!r}')
        if (
            growth_gradient == "theta"
            and isinstance(optimizer, SharpnessAware)
            and _sees_no_gradient_at_theta(optimizer)
        ):
            raise ValueError(
                f"{type(self).__name__} grows by the gradient at theta; {optimizer.method()} takes none there"
            )
        self.growth_gradient = growth_gradient
        self.candidates = candidates
        self._wanted: dict[str, tuple[int, Tensor]] = {}
        super().__init__(model, optimizer, sparsity, **settings)

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        return {"candidates": 1.0}  # all of them

    def gradient_wanted(self, name: str) -> Tensor | None:
        if self.candidates is None:
            return None
        step, wanted = self._wanted.get(name, (-1, None))
        if wanted is None or step != self.steps:
            active = whole(self.masks[name])
            noise = torch.rand(active.numel(), generator=self.stream(f"{name} candidates"), device=active.device)
            pruned, units = active.numel() - int(active.sum()), self.n_active_by_layer[name]
            count = max(math.ceil(self.candidates * pruned), int(self.fraction() * units))  # as many as grow, at least
            wanted = active | top(torch.where(active, -torch.inf, laid_out_like(active, noise)), min(count, pruned))
            self._wanted[name] = self.steps, wanted
        return wanted

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        score, wanted = self._size_of_gradient(name), self.gradient_wanted(name)
        return score if wanted is None else torch.where(wanted, score, -1.0)

    def _size_of_gradient(self, name: str) -> Tensor:
        """Where RigL looks at the gradient: the whole one, taken at the perturbed point or at θ."""
        if self.growth_gradient == "perturbed":
            return self.gradient(name).abs()
        if not self._at_theta.kept:
            raise ValueError(f"{type(self).__name__} grows by the gradient at theta; this optimizer takes none there")
        if name not in self._at_theta.kept:
            raise NoGradient(name)
        return self.telling(name, self._at_theta.get(name, self.ranks)).abs()

    def update(self) -> Masks:
        masks = super().update()
        self._at_theta.kept.clear()
        self._wanted.clear()
        return masks

    def gradient_density(self) -> dict[str, float]:
        """One step in `every` computes the whole gradient, or that of candidates too, as long as masks move."""
        share = (self.candidates or 1.0) / self.every if self.steps < self.end else 0.0
        return {n: d + share * (1 - d) for n, d in super().gradient_density().items()}

    def _hold(self) -> None:
        self._at_theta = DenseGradients(self.weights, self.masks)
        super()._hold()

    def _see(self, name: str, adds: bool) -> None:
        super()._see(name, adds)
        wrapper = self.sharpness
        if self.growth_gradient == "theta" and (wrapper is None or not wrapper.is_displaced):
            self._at_theta.keep(name, adds)


def _sees_no_gradient_at_theta(optimizer: SharpnessAware) -> bool:
    """Whether all that it takes is the gradient at the perturbed point: one backward, while it climbs."""
    climbs = optimizer.schedule is not None or any(optimizer.rhos())
    return climbs and optimizer.passes_per_step()["backward"] == 1
