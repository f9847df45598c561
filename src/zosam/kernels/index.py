"""The index of a sparse layer: which weights are active, and where each finds its input in a band.

It follows the pattern as it changes.

Forward: for output channel o, every active (i, ky, kx) reads the padded input band at a fixed offset.
Input gradient: for input channel i, every active (o, ky, kx) reads the padded band of the output gradient;
with stride 2 the input pixels fall into four parities that see different weights, so there are four indices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zosam.optim.active import masks_of

from .library import Index, Library, PixelShape, Shape

Ints = NDArray[np.int64]
BAND_BYTES = 320 * 1024  # a band stays in the second-level cache while its tiles are computed
L1_BYTES = 25 * 1024  # what a tile reads of one group of channels
WORTHWHILE = 0.7  # share of active weights below which zeros are taken for a pattern
WORTH = 8  # active weights per row and group that pay for keeping partial sums


@dataclass(frozen=True)
class Geometry:
    """The shape of one convolution on one input size; a linear layer is a 1 x 1 convolution."""

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def reads_every_row(self) -> bool:
        """Whether the forward walks over the whole input, so that it can store it on the way."""
        return (self.out_height - 1) * self.stride + self.kernel - self.pad >= self.height


def layout_for(g: Geometry) -> torch.memory_format:
    """The layout for torch's own convolution: channels_last, save for odd channel counts.

    There the weight gradient of torch 2.13 (oneDNN, 1 x 1, stride 2, 6 -> 10 channels) writes past its memory.
    """
    return torch.channels_last if g.inputs % 8 == 0 == g.outputs % 8 else torch.contiguous_format


def plane(height: int, width: int, lanes: int) -> int:
    """Floats between channels: one cache line more than needed, so that channels spread over cache sets."""
    return height * width * lanes + 16


def pixel_row(width: int, lanes: int) -> int:
    """Floats of a row whose pixels lie innermost: full vectors."""
    return -(-width // lanes) * lanes


def pixel_plane(height: int, width: int, lanes: int) -> int:
    """The same as `plane`, for pixels innermost."""
    return height * pixel_row(width, lanes) + 16


def shape_of(g: Geometry, lanes: int, band_bytes: int = BAND_BYTES) -> ctypes.Structure:
    """The C view of a geometry: band height chosen so that a band fits the cache."""
    top = -(-(g.kernel - 1 - g.pad) // g.stride)
    bottom = (g.stride - 1 + g.pad) // g.stride
    across = max(-(-g.width // g.stride), g.out_width)
    row_bytes = max(g.inputs * (g.width + 2 * g.pad) * g.stride, g.outputs * (across + top + bottom)) * lanes * 4
    down = max(-(-g.height // g.stride), g.out_height)
    rows = max(2, min(down, band_bytes // row_bytes // 2 * 2))
    in_band = ((rows - 1) * g.stride + g.kernel) * (g.width + 2 * g.pad) + 1
    out_band = (rows + top + bottom) * (across + top + bottom) + 1
    shape: ctypes.Structure = Shape(
        0, g.inputs, g.outputs, g.height, g.width, g.kernel, g.stride, g.pad, g.out_height, g.out_width,
        plane(g.height, g.width, lanes), plane(g.out_height, g.out_width, lanes), rows,
        in_band * lanes, out_band * lanes, top, bottom, 0,
    )  # fmt: skip
    return shape


def _c_index(owned: list[object], starts: Ints, order: Ints, offset: Ints, pick: Ints, groups: int) -> ctypes.Structure:
    """A C index; what it points to is kept in `owned`."""
    if len(offset) and int(max(offset.max(), pick.max())) > np.iinfo(np.int32).max:
        raise OverflowError("layer too large for 32-bit offsets")
    arrays = [torch.from_numpy(starts.astype(np.int32))]
    arrays += [torch.from_numpy(np.append(a[order], 0).astype(np.int32)) for a in (offset, pick)]
    arrays.append(torch.zeros(len(offset) + 1))
    owned += arrays
    index: ctypes.Structure = Index(*(a.data_ptr() for a in arrays), groups)
    return index


def _active(g: Geometry, mask: Tensor, strides: tuple[int, ...]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Output, input, row and column of every active weight, and where its value lies."""
    o, i, y, x = (a.numpy() for a in mask.reshape(g.outputs, g.inputs, g.kernel, g.kernel).cpu().nonzero(as_tuple=True))
    strides = (*strides, 1, 1)[:4]
    return o, i, y, x, o * strides[0] + i * strides[1] + y * strides[2] + x * strides[3]


class PixelIndex:
    """The index of one mask for few pictures, with pixels innermost: forward only."""

    def __init__(self, g: Geometry, mask: Tensor, strides: tuple[int, ...], lanes: int) -> None:
        o, i, y, x, pick = _active(g, mask, strides)
        row, out_row = pixel_row(g.width, lanes), pixel_row(g.out_width, lanes)
        half = max(-(-(g.width + 2 * g.pad) // g.stride), out_row + (g.kernel - 1) // g.stride)
        band_row = half * g.stride
        rows = max(1, min(g.out_height, BAND_BYTES // (4 * g.inputs * band_row * g.stride)))
        band = ((rows - 1) * g.stride + g.kernel) * band_row + lanes
        self.shape = PixelShape(
            0, g.inputs, g.outputs, g.height, g.width, g.kernel, g.stride, g.pad, g.out_height, g.out_width,
            pixel_plane(g.height, g.width, lanes), row, pixel_plane(g.out_height, g.out_width, lanes), out_row,
            rows, band, band_row, half, len(o),
        )  # fmt: skip
        self.active = len(o)
        offset = i * band + y * band_row + (x % g.stride) * half + x // g.stride
        starts = np.concatenate([[0], np.bincount(o, minlength=g.outputs).cumsum()])
        self._owned: list[object] = []
        self.forward = _c_index(self._owned, starts, np.lexsort((offset, o)), offset, pick, 1)
        self.transposed = self.counts = self.forward  # there is no backward


class LayerIndex:
    """Forward and transposed index of one mask; it keeps the arrays that the C structures point to."""

    def __init__(self, g: Geometry, mask: Tensor, strides: tuple[int, ...], lanes: int) -> None:
        self.shape = shape_of(g, lanes)
        o, i, y, x, pick = _active(g, mask, strides)
        self.active = self.shape.active = len(o)
        s, top = self.shape, self.shape.top
        band_width = g.width + 2 * g.pad
        self._owned: list[object] = []
        patch = (g.kernel - 1 + 2 * g.stride) * (g.kernel - 1 + 4 * g.stride) * lanes * 4
        offset = i * s.in_band + (y * band_width + x) * lanes
        self.forward, _ = self._index(i, o, (g.inputs, g.outputs), patch, offset, pick)
        across = max(-(-g.width // g.stride), g.out_width) + top + s.bottom
        transposed = []
        for parity in range(g.stride**2):
            py, px = divmod(parity, g.stride)
            mine = np.flatnonzero(((py + g.pad - y) % g.stride == 0) & ((px + g.pad - x) % g.stride == 0))
            down = (py + g.pad - y[mine]) // g.stride + top
            right = (px + g.pad - x[mine]) // g.stride + top
            offset = o[mine] * s.out_band + (down * across + right) * lanes
            reach = -(-(g.kernel - 1) // g.stride)
            patch = (reach + 2) * (reach + 4) * lanes * 4
            sizes = (g.outputs, g.inputs)
            transposed.append(self._index(o[mine], i[mine], sizes, patch, offset, pick[mine]))
        self.transposed = (Index * len(transposed))(*(index for index, _ in transposed))
        self.counts = (ctypes.c_int64 * len(transposed))(*(count for _, count in transposed))
        self._owned += [self.transposed, self.counts]

    def _index(
        self, source: Ints, row: Ints, sizes: tuple[int, int], patch: int, offset: Ints, pick: Ints
    ) -> tuple[ctypes.Structure, int]:
        """A C index with its entries sorted by group of source channels, then row, then source channel.

        `patch` is what a tile reads of one source channel, in bytes.
        """
        sources, rows = sizes
        groups = max(1, min(round(sources * patch / L1_BYTES), len(offset) // (WORTH * rows)))
        width = -(-sources // groups)
        groups = -(-sources // width)
        place = source // width * rows + row
        starts = np.concatenate([[0], np.bincount(place, minlength=groups * rows).cumsum()])
        index = _c_index(self._owned, starts, np.lexsort((offset, place)), offset, pick, groups)
        return index, len(offset)


class Masks(Protocol):
    """What the kernels need of a sparsity: boolean masks by parameter name, changed in place."""

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
        active = torch.ones(g.outputs, g.inputs, g.kernel, g.kernel, dtype=torch.bool) if mask is None else mask
        self.index, self.seen = self.kind(g, active, strides, self.lanes), NOT_SEEN
        return self.index


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

    def density(self, module: nn.Module) -> float:
        mask = self.mask(module)
        return 1.0 if mask is None else float(mask.sum()) / max(mask.numel(), 1)

    def dense_gradient(self) -> bool:
        """Whether the coming step looks at the gradient of pruned weights as well."""
        asks = getattr(self.sparse, "needs_dense_gradient", None)
        return bool(asks()) if asks is not None else False

    def pattern(self, module: nn.Module, geometry: Geometry, pixels: bool) -> Pattern:
        """The pattern of a layer, the same one for all programs."""
        if (module, geometry, pixels) not in self._patterns:
            self._patterns[module, geometry, pixels] = Pattern(self, module, geometry, pixels)
        return self._patterns[module, geometry, pixels]
