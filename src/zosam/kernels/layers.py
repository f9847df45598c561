"""The sparse layers of a model: the mask of each, and the index that follows it as it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from zosam.optim.active import masks_of

from .index import Geometry, LayerIndex, PixelIndex
from .library import Library

WORTHWHILE = 0.7  # share of active weights below which zeros are taken for a pattern


class Masks(Protocol):
    """What the kernels need of a sparsity: boolean masks by parameter name, changed in place.

    It may also say whether the coming step needs the gradient of pruned weights, `needs_dense_gradient()`, and where:
    `gradient_wanted(name)`, a mask, or None for everywhere.
    """

    masks: dict[str, Tensor]


NOT_SEEN: tuple[Callable[[], Tensor | None], int, int] = (lambda: None, -1, 0)


class Pattern:
    """The index of one layer on one input size, for the mask and the layout of the weight that it was made for."""

    def __init__(self, layers: Layers, module: nn.Module, geometry: Geometry, pixels: bool) -> None:
        self.module, self.geometry, self.lanes = module, geometry, layers.lib.lanes
        self.sparse = layers.mask(module) is not None
        self.kind = PixelIndex if pixels else LayerIndex
        self.index: LayerIndex | PixelIndex | None = None
        self.seen = NOT_SEEN  # the weight, its version and address when its pruned entries were found to be zero

    def make(self, mask: Tensor | None, strides: tuple[int, ...]) -> LayerIndex | PixelIndex:
        """Index this mask."""
        g = self.geometry
        self.mask, self.version, self.strides = mask, -1 if mask is None else mask._version, strides
        active = torch.ones(g.weight, dtype=torch.bool) if mask is None else mask
        self.index, self.seen = self.kind(g, active, strides, self.lanes), NOT_SEEN
        return self.index

    def other(self, mask: Tensor) -> LayerIndex | PixelIndex:
        """The index of another mask, for once."""
        return self.kind(self.geometry, mask, self.strides, self.lanes)


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    """Masks by the zeros of those weights that have many."""
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1 and p.is_floating_point()}
    found = {n: w != 0 for n, w in weights.items()}
    return {n: mask for n, mask in found.items() if int(mask.sum()) < WORTHWHILE * mask.numel()}


def _fits(masks: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse masks of something else."""
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        if name not in parameters:
            raise ValueError(f"there is a mask for {name}, which is no parameter of this model")
        if mask.dtype != torch.bool or mask.shape != parameters[name].shape:
            raise ValueError(
                f"the mask of {name} must be boolean and of the weight's shape {tuple(parameters[name].shape)},"
                f" not {mask.dtype} and {tuple(mask.shape)}"
            )


class Layers:
    """Finds the mask of a layer and keeps one pattern per layer and input size.

    A mask belongs to its weight (`zosam.optim.active`). Masks that are kept nowhere but in the object that was given
    are found by the name of their weight.
    """

    def __init__(self, lib: Library, model: nn.Module, sparse: Masks | Mapping[str, Tensor] | None) -> None:
        self.lib, self.model, self.sparse = lib, model, sparse
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        if masks_of(model.parameters()) and not hasattr(sparse, "needs_dense_gradient"):
            raise ValueError("a sparse method keeps this model: give accelerate that object as well, as `sparse`")
        self.serving = sparse is None  # the weights' own zeros are the pattern; nothing is trained
        if isinstance(sparse, Mapping):
            _fits(sparse, model)
        self.given = _zeros(model) if sparse is None else sparse if isinstance(sparse, Mapping) else sparse.masks
        self.kept: set[nn.Module] = set()  # whose mask was seen to belong to the weight
        self._patterns: dict[tuple[nn.Module, Geometry, bool], Pattern] = {}

    def mask(self, module: nn.Module) -> Tensor | None:
        """The mask of a layer's weight; None means every weight is active."""
        return self.masks([module])[0]

    def masks(self, modules: Sequence[nn.Module]) -> list[Tensor | None]:
        """The masks of layers, as they are now."""
        weights = [m._parameters.get("weight") for m in modules]
        kept = masks_of([w for w in weights if w is not None])
        found: list[Tensor | None] = []
        for module, weight in zip(modules, weights, strict=True):
            mask = None if weight is None else kept.get(weight)
            if mask is not None:
                self.kept.add(module)
            elif module not in self.kept:  # else it was let go
                own = module.__dict__.get("active")  # of a layer of our own, plan.Selection
                mask = own if isinstance(own, Tensor) else self.given.get(self.names.get(id(weight), ""))
            found.append(mask)
        return found

    def renew(self) -> None:
        """Look for the weights' own zeros again."""
        for name, weight in self.model.named_parameters():
            if name in self.given:
                self.given[name].copy_(weight != 0)

    def any_sparse(self, module: nn.Module) -> bool:
        """Whether some parameter inside has a mask."""
        inside = list(module.parameters())
        return bool(masks_of(inside)) or any(self.names.get(id(p), "") in self.given for p in inside)

    def is_sparse(self, weight: nn.Parameter) -> bool:
        """Whether a parameter has a mask."""
        return bool(masks_of([weight])) or self.names.get(id(weight), "") in self.given

    def density(self, module: nn.Module) -> float:
        mask = self.mask(module)
        return 1.0 if mask is None else float(mask.sum()) / max(mask.numel(), 1)

    def gradient_of(self) -> str:
        """Of which weights the coming step needs the gradient: those that are active, wanted by the method, or all."""
        asks = getattr(self.sparse, "needs_dense_gradient", None)
        if asks is None or not asks():
            return "active"
        return "wanted" if all(self.wanted_by_name(name) is not None for name in self.given) else "all"

    def wanted_by_name(self, name: str) -> Tensor | None:
        asks = getattr(self.sparse, "gradient_wanted", None)
        wanted: Tensor | None = None if asks is None else asks(name)
        return wanted

    def wanted(self, module: nn.Module) -> Tensor | None:
        """Where the gradient of a layer is wanted, if that is told."""
        name = self.names.get(id(module._parameters["weight"]), "")
        return self.wanted_by_name(name) if name in self.given else None

    def pattern(self, module: nn.Module, geometry: Geometry, pixels: bool) -> Pattern:
        """The pattern of a layer, the same one for all programs."""
        if (module, geometry, pixels) not in self._patterns:
            self._patterns[module, geometry, pixels] = Pattern(self, module, geometry, pixels)
        return self._patterns[module, geometry, pixels]
