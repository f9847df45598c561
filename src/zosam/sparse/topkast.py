"""Top-KAST: all weights are remembered, the largest compute, a few more learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.state import Masks
from zosam.sparse.top_k import top
from zosam.sparse.updates import Periodic

DECOUPLED = {"AdamW", "Adafactor", "Muon", "Lion"}  # optimizers that decay weights by themselves, and need not say so


class TopKAST(Periodic):
    """Dynamic: the largest |θ| compute (A), a wider set learns (B), all others are kept aside unchanged.

    The forward pass uses θ on A; the optimizer moves θ on B ⊃ A. Weights in B but not in A decay 1/density times as
    fast as those in A, which asks them to prove themselves. Jayakumar et al., "Top-KAST: Top-K always sparse
    training", NeurIPS 2020. `backward_sparsity` says how sparse B is; unless told, B is twice as large as A. The
    paper finds choosing the sets every 100 steps as good as every step. The parameters hold θ on A and exact zeros
    elsewhere; the rest is in this method's state.
    """

    draws: ClassVar[bool] = False
    patterns: ClassVar[tuple[str, ...]] = ()
    until: float = 1.0
    revives: ClassVar[bool] = True
    needs_length: ClassVar[bool] = False
    update_reads_gradient: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        backward_sparsity: float | None = None,
        **settings: Any,
    ) -> None:
        wide = self.unless_told(sparsity)["backward_sparsity"] if backward_sparsity is None else backward_sparsity
        if not 0 <= wide <= sparsity:
            raise ValueError(f"backward_sparsity must be between 0 and the sparsity {sparsity}, not {wide}")
        self.widening = (1 - wide) / (1 - sparsity)
        super().__init__(model, optimizer, sparsity, **settings)

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        return {"backward_sparsity": max(0.0, 1 - 2 * (1 - sparsity))}

    def choose(self) -> Masks:
        self.rest = {n: torch.zeros_like(w) for n, w in self.weights.items()}  # θ outside A
        self.learning = {n: torch.zeros_like(w, dtype=torch.bool) for n, w in self.weights.items()}  # B
        return self._largest()

    def needs_dense_gradient(self) -> bool:
        return True  # on B, which the model's masks do not show

    def gradient_density(self) -> dict[str, float]:
        return {n: float(b.float().mean()) for n, b in self.learning.items()}

    def gradient_mask(self, name: str) -> Tensor:
        return self.learning[name]

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        """Show the optimizer θ on all of B, with the decay of B - A where the optimizer has its own."""
        for name, weight in weights.items():
            weight.add_(self.rest[name] * self.learning[name])
            if not self._decouples(weight):
                self.pull(weight, weight.detach() * (self.learning[name] & ~self.masks[name]), self._more(name))

    def settle(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            mask, learning = self.masks[name], self.learning[name]
            decay = self.setting(weight, "lr") * self._more(name) if self._decouples(weight) else 0.0
            kept = weight.detach() * max(0.0, 1 - decay)
            self.rest[name] = torch.where(learning, kept, self.rest[name]).mul_(~mask)
            weight.mul_(mask)

    def after_step(self) -> None:
        if self.due():
            self.commit(self._largest())

    def _more(self, name: str) -> float:
        """The weight decay of B - A beyond that of A."""
        density = self.n_active_by_layer[name] / self.weights[name].numel()
        return self.setting(self.weights[name], "weight_decay") * (1 / density - 1)

    def _decouples(self, weight: Tensor) -> bool:
        """Whether the optimizer decays weights by themselves, as AdamW does, and not by way of the gradient."""
        for optimizer in self.optimizers:
            own = bool(DECOUPLED & {kind.__name__ for kind in type(optimizer).__mro__})
            for group in optimizer.param_groups:
                if any(p is weight for p in group["params"]):
                    return bool(group.get("decoupled_weight_decay", group.get("weight_decouple", own)))
        return False

    def replace(self, name: str, new: Tensor) -> None:
        """Move weights between the model and what is kept aside; optimizer state lives on B."""
        weight = self.weights[name]
        theta = weight.detach() + self.rest[name]
        self.learning[name] = top(theta.abs().masked_fill(new, torch.inf), self._wide(name))
        self.rest[name] = theta * ~new
        weight.copy_(theta * new)
        for state in self.state_of(weight):
            state.mul_(self.learning[name])
        self.masks[name].copy_(new)

    def _largest(self) -> Masks:
        return {n: top((w.detach() + self.rest[n]).abs(), self.n_active_by_layer[n]) for n, w in self.weights.items()}

    def _wide(self, name: str) -> int:
        return min(round(self.widening * self.n_active_by_layer[name]), self.weights[name].numel())

    def extra_state(self) -> dict[str, Any]:
        kept_aside = {n: r.clone() for n, r in self.rest.items()}
        return {"rest": kept_aside, "learning": {n: b.clone() for n, b in self.learning.items()}}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.rest = {n: r.clone() for n, r in state["rest"].items()}
        self.learning = {n: b.clone() for n, b in state["learning"].items()}
