"""The sparse layers of a model: their masks, and an index that follows the pattern as it changes."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import index
from .index import Geometry, LayerIndex
from .library import Library
from .plan import Selection


class Masks(Protocol):
    """What the kernels need of a sparsity: boolean masks by parameter name, changed in place."""

    masks: dict[str, Tensor]


class Indexed:
    """The index of one layer on one input size: rebuilt when its mask or the layout of its weight has changed."""

    def __init__(self, layers: Layers, module: nn.Module, geometry: Geometry) -> None:
        self.layers, self.module, self.geometry = layers, module, geometry
        self._state: tuple[Any, ...] | None = None

    def index(self, weight: Tensor) -> LayerIndex:
        """The index for the present pattern."""
        mask = self.layers.mask(self.module)
        state = (id(mask), mask._version if mask is not None else 0, weight.stride())
        if state != self._state:
            active = torch.ones(weight.shape, dtype=torch.bool) if mask is None else mask
            self._index = LayerIndex(self.geometry, active, weight.stride(), self.layers.lib.lanes)
            self._state = state
        return self._index


class Layers:
    """Finds the mask of a layer and keeps one index per layer and input size."""

    def __init__(self, lib: Library, model: nn.Module, sparse: Masks | None) -> None:
        self.lib, self.sparse = lib, sparse
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.names = {m: names.get(id(getattr(m, "weight", None)), "") for m in model.modules()}
        self._indexed: dict[tuple[nn.Module, Geometry], Indexed] = {}

    def plane(self, height: int, width: int) -> int:
        return index.plane(height, width, self.lib.lanes)

    def mask(self, module: nn.Module) -> Tensor | None:
        """The mask of a layer's weight; None means every weight is active."""
        if isinstance(module, Selection):
            return module.active
        return None if self.sparse is None else self.sparse.masks.get(self.names.get(module, ""))

    def any_sparse(self) -> bool:
        return any(self.mask(module) is not None for module in self.names)

    def density(self, module: nn.Module) -> float:
        mask = self.mask(module)
        return 1.0 if mask is None else float(mask.sum()) / max(mask.numel(), 1)

    def dense_gradient(self) -> bool:
        """Whether the coming step looks at the gradient of pruned weights as well."""
        asks = getattr(self.sparse, "needs_dense_gradient", None)
        return bool(asks()) if asks is not None else False

    def indexed(self, module: nn.Module, geometry: Geometry) -> Indexed:
        """The keeper of a layer's index, the same for all programs."""
        return self._indexed.setdefault((module, geometry), Indexed(self, module, geometry))
