"""What users ask of a sparse model: how sparse it is, where, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zosam.distributed.fsdp import whole
from zosam.sparse.masks import Masks
from zosam.sparse.patterns import Unstructured
from zosam.sparse.table import table

if TYPE_CHECKING:
    from zosam.optim.base import SharpnessAware
    from zosam.sparse.flops import Flops


class Account:
    """The part of a `Sparsity` that reports."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    kept_dense: dict[str, nn.Parameter]
    masks: Masks
    pattern: Unstructured

    if TYPE_CHECKING:

        @property
        def sharpness(self) -> SharpnessAware | None: ...

    @property
    def sparsity(self) -> float:
        """The share of zeros over all prunable weights, as it is now."""
        return self._zeros() / sum(w.numel() for w in (*self.weights.values(), *self.kept_dense.values()))

    @property
    def masked_sparsity(self) -> float:
        """The share of zeros over the masked layers alone."""
        return self._zeros() / sum(w.numel() for w in self.weights.values())

    def density(self) -> dict[str, float]:
        """The share of active weights of each masked layer."""
        return {n: int(torch.count_nonzero(whole(m))) / m.numel() for n, m in self.masks.items()}

    def gradient_density(self) -> dict[str, float]:
        """The share of each layer's weight gradient that a step computes, on average over the steps around now."""
        return self.density()

    def flops(self, *inputs: Any) -> Flops:
        """The operations of inference and of a training step on such inputs, as masks and optimizer are now."""
        from zosam.sparse.flops import Flops, layer_flops

        layers, other = layer_flops(self.model, {**self.weights, **self.kept_dense}, *inputs)
        density = dict.fromkeys(self.kept_dense, 1.0) | self.density()
        passes = {"forward": 1.0, "backward": 1.0} if self.sharpness is None else self.sharpness.passes_per_step()
        return Flops(layers, other, density, density | self.gradient_density(), **passes)

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zero the pruned weights of a copy of the model, such as a moving average."""
        parameters = dict(model.named_parameters())
        for name, mask in self.masks.items():
            parameters[name].mul_(mask)

    def __str__(self) -> str:
        title = type(self).__name__ + ("" if self.pattern.kind == "unstructured" else f" ({self.pattern.name})")
        return table(title, self.weights, {n: whole(m) for n, m in self.masks.items()}, self.kept_dense)

    def _zeros(self) -> int:
        return sum(m.numel() - int(torch.count_nonzero(whole(m))) for m in self.masks.values())
