"""Static sparsity: score every weight once, keep the best, train only those."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.optim.passes import NoBackward, Passes
from zosam.sparse.base import Masks, Sparsity
from zosam.sparse.top import top


class Static(Sparsity):
    """Masks from a score at the start; a method overrides `score`. The highest scores are kept.

    With `budget="global"`, the default, all layers compete for one total; any other budget ranks inside each layer.
    """

    budget: ClassVar[str] = "global"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.9,
        *,
        loss: Callable[[], Tensor] | None = None,
        **settings: Any,
    ) -> None:
        self.loss = loss
        super().__init__(model, optimizer, sparsity, **settings)

    def score(self) -> dict[str, Tensor]:
        """One score per weight; the highest are kept."""
        raise NotImplementedError(f"{type(self).__name__} does not score weights")

    def choose(self) -> Masks:
        scores = self.score()
        bad = [n for n, s in scores.items() if not bool(s.isfinite().all())]
        if bad:
            raise FloatingPointError(f"{type(self).__name__}: scores of {bad[0]} are not finite; nothing was pruned")
        masks = (
            {n: top(s, self.counts[n]) for n, s in scores.items()} if self.counts else top_of_all(scores, self.active)
        )
        empty = [n for n, m in masks.items() if not bool(m.any())]
        if empty:
            warnings.warn(
                f"{type(self).__name__} has pruned all of {', '.join(empty)}: the network is cut", stacklevel=4
            )
        return masks

    def gradients(self) -> dict[str, Tensor]:
        """The gradient of `loss` for each masked weight; model, buffers and random streams stay as they are."""
        if self.loss is None:
            raise ValueError(
                f"{type(self).__name__} scores weights by the loss: pass loss=lambda: F.cross_entropy(model(x), y)"
            )
        weights = list(self.weights.values())
        with Passes(lambda: weights[0].device).frozen(self.loss), torch.enable_grad(), NoBackward():
            found = torch.autograd.grad(self.loss().mean(), weights, allow_unused=True)
        return {
            n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(self.weights.items(), found, strict=True)
        }


def top_of_all(scores: dict[str, Tensor], k: int) -> Masks:
    """Masks of the k highest scores over all layers together."""
    keep = top(torch.cat([s.reshape(-1) for s in scores.values()]), k)
    parts = keep.split([s.numel() for s in scores.values()])
    return {
        n: torch.empty_like(s, dtype=torch.bool).copy_(part.view(s.shape))
        for (n, s), part in zip(scores.items(), parts, strict=True)
    }
