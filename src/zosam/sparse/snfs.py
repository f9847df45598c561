"""SNFS: weights move to the layers, and the places, where the momentum is largest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.base import NoGradient
from zosam.sparse.budgets import fill
from zosam.sparse.dynamic import Dynamic
from zosam.sparse.state import Masks
from zosam.sparse.top_k import top


class SNFS(Dynamic):
    """Dynamic: drop the smallest weights, grow where the momentum is largest, across layers (sparse momentum).

    A layer's share of all that grows is its mean |momentum| over active weights; inside a layer the largest
    |momentum| grows. A layer that is nearly dense and earns more than the average drops no more than its share of
    zeros. Dettmers, Zettlemoyer, "Sparse networks from scratch: faster training without losing performance", 2019.
    Gradient and momentum stay dense, and a grown weight keeps its momentum. What does not fit into a layer goes to
    the others by their shares (there: equally), so the count is exact at every update.
    """

    budget: ClassVar[str] = "uniform"
    patterns: ClassVar[tuple[str, ...]] = ()
    dense_gradients: ClassVar[bool] = True
    sharded: ClassVar[bool] = False
    once_an_epoch: ClassVar[bool] = True
    update_reads_gradient: ClassVar[bool] = False
    until: float = 1.0

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        every: int | None = None,
        drop_fraction: float = 0.5,
        **settings: Any,
    ) -> None:
        if every is None:
            raise ValueError("SNFS moves its masks once an epoch: pass every=len(loader)")
        super().__init__(model, optimizer, sparsity, every=every, drop_fraction=drop_fraction, **settings)

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        return {} if epoch is None else {"every": epoch}

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        return self.finite(name, self.momentum(name).abs())

    def update(self) -> Masks:
        score: dict[str, Tensor] = {}
        for name, weight in self.weights.items():
            with suppress(NoGradient):  # a layer that was never used: its mask stays
                score[name] = self.grow_score(name, weight.detach())
        masks = {n: self.masks[n] for n in score}
        worth = {n: float(score[n][m].mean()) if bool(m.any()) else 0.0 for n, m in masks.items()}
        total = sum(worth.values())
        share = {n: v / total if total > 0 else 1 / len(worth) for n, v in worth.items()}
        kept = {n: self._surviving(n, share[n]) for n in score}
        alive = {n: int(k.sum()) for n, k in kept.items()}
        room = {n: m.numel() - alive[n] for n, m in masks.items()}
        elsewhere = sum(int(m.sum()) for n, m in self.masks.items() if n not in score)
        grow = fill(self.n_active - elsewhere - sum(alive.values()), share, room)
        return {n: top(s.masked_fill(kept[n], torch.inf), alive[n] + grow[n]) for n, s in score.items()}

    def gradient_density(self) -> dict[str, float]:
        return dict.fromkeys(self.weights, 1.0)

    def momentum(self, name: str) -> Tensor:
        """The optimizer's running mean of the gradient; Adam's in units of its running size."""
        weight = self.weights[name]
        state: dict[str, Any] = next((o.state[weight] for o in self.optimizers if weight in o.state), {})
        if state.get("momentum_buffer") is not None:
            return torch.as_tensor(state["momentum_buffer"])
        if "exp_avg" in state and "exp_avg_sq" in state:
            return torch.as_tensor(state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8))
        others_have = any(o.state.get(w) for o in self.optimizers for w in self.weights.values())
        raise (NoGradient if others_have and not state else ValueError)(
            f"SNFS grows by momentum, and {type(self.optimizer).__name__} keeps none for {name}:"
            " take SGD with momentum, Adam or AdamW"
        )

    def _surviving(self, name: str, share: float) -> Tensor:
        mask, weight = self.masks[name], self.weights[name].detach()
        active, fraction = int(mask.sum()), self.fraction()
        zeros = 1 - active / mask.numel()
        if zeros < 0.2 and share > 1 / len(self.weights):
            fraction = min(zeros, fraction)
        drop = min(int(fraction * active), active - 1) if active else 0
        return top(self.drop_score(name, weight).masked_fill(~mask, -torch.inf), active - drop)
