"""What users ask of a sparse model: how sparse it is, where, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zosam.distributed.fsdp import whole
from zosam.sparse.patterns import Unstructured
from zosam.sparse.prunable import plain, plain_name

if TYPE_CHECKING:
    from zosam.optim.base import SharpnessAware
    from zosam.sparse.flops import Flops


class Report:
    """The part of a `Sparsity` that answers questions."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    kept_dense: dict[str, nn.Parameter]
    left_out: dict[str, tuple[nn.Parameter, str]]
    masks: dict[str, Tensor]
    pattern: Unstructured
    if TYPE_CHECKING:

        @property
        def sharpness(self) -> SharpnessAware | None: ...

    @property
    def sparsity(self) -> float:
        """The share of zeros over all prunable weights, as it is now; `target_sparsity` is what was asked for."""
        return self._zeros() / sum(w.numel() for w in (*self.weights.values(), *self.kept_dense.values()))

    @property
    def masked_sparsity(self) -> float:
        """The share of zeros over the masked layers alone."""
        return self._zeros() / sum(w.numel() for w in self.weights.values())

    @property
    def model_sparsity(self) -> float:
        """The share of zeros over all parameters of the model."""
        return self._zeros() / sum(p.numel() for p in self.model.parameters())

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
        wrapper = self.sharpness
        passes = {"forward": 1.0, "backward": 1.0} if wrapper is None else wrapper.passes_per_step()
        return Flops(layers, other, density, density | self.gradient_density(), **passes)

    @torch.no_grad()
    def apply_to(self, model: nn.Module) -> None:
        """Zero the pruned weights of a copy of the model, such as a moving average."""
        parameters = {plain_name(n): p for n, p in plain(model).named_parameters(remove_duplicate=False)}
        shapes = {n: p.shape for n, p in parameters.items()}
        if other := [n for n, mask in self.masks.items() if shapes.get(n) != mask.shape]:
            raise ValueError(f"this is no copy of the sparse model: it has no {', '.join(other[:3])} of that shape")
        for name, mask in self.masks.items():
            parameters[name].mul_(mask)

    def __str__(self) -> str:
        """One line per matrix of the model, under a head with the sparsity of what is prunable and of the whole."""
        others: dict[str, tuple[Tensor, str]] = {name: (w, "kept dense") for name, w in self.kept_dense.items()}
        others |= {name: (w, f"left out: {why}") for name, (w, why) in self.left_out.items()}
        title = type(self).__name__ + ("" if self.pattern.kind == "unstructured" else f" ({self.pattern.name})")
        masked = f" ({self.masked_sparsity:.2%} of the masked ones)" if self.kept_dense else ""
        total = sum(p.numel() for p in self.model.parameters())
        head = (
            f"{title}: {self.sparsity:.2%} of all prunable weights are zero{masked},"
            f" {self.model_sparsity:.2%} of the model's {total:,} parameters"
        )
        return f"{head}\n{layer_table(self.masks, others)}"

    def _zeros(self) -> int:
        return sum(m.numel() - int(torch.count_nonzero(whole(m))) for m in self.masks.values())


def layer_table(masks: Mapping[str, Tensor], others: Mapping[str, tuple[Tensor, str]]) -> str:
    """A line for each mask, with how much of its layer is active, and for each other weight with what is said of it."""
    rows = [("layer", "shape", "active", "of", "density")]
    for name, mask in masks.items():
        active = int(torch.count_nonzero(whole(mask)))
        rows.append((name, _shape(mask), f"{active:,}", f"{mask.numel():,}", f"{active / mask.numel():6.1%}"))
    for name, (weight, said) in others.items():
        rows.append((name, _shape(weight), f"{weight.numel():,}", f"{weight.numel():,}", said))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:4], widths[1:4], strict=True)), row[4]]
    return "  ".join(cells)


def _shape(weight: Tensor) -> str:
    return "x".join(map(str, weight.shape))
