"""The index of a sparse layer: which weights are active, and where each finds its input in a band.

Forward: for output channel o, every active (i, ky, kx) reads the padded input band at a fixed offset.
Input gradient: for input channel i, every active (o, ky, kx) reads the padded band of the output gradient;
with stride 2 the input pixels fall into four parities that see different weights, so there are four indices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zosam.layouts import convolution_bears_it

from ..build import structure

Ints = NDArray[np.int64]
BAND_BYTES = 320 * 1024  # a band stays in the second-level cache while its tiles are computed
L1_BYTES = 25 * 1024  # what a tile reads of one group of channels
WORTH = 8  # active weights per row and group that pay for keeping partial sums

Index = structure("Index", pointers="start offset pick value", integers="groups")
Shape = structure(
    "Shape",
    integers="images inputs outputs height width kernel stride pad side out_height out_width in_plane out_plane rows "
    "in_band out_band top bottom left right active",
)
PixelShape = structure(
    "PixelShape",
    integers="images inputs outputs height width kernel stride pad side out_height out_width in_plane in_row out_plane "
    "out_row rows band band_row half active",
)


@dataclass(frozen=True)
class Geometry:
    """The shape of one convolution on one input size; a linear layer is a 1 x 1 convolution."""

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    pad: tuple[int, int] = (0, 0)
    dilation: int = 1
    groups: int = 1

    @property
    def reach(self) -> tuple[int, int]:
        """Rows and columns from the first to the last that the kernel reads."""
        return self.dilation * (self.kernel[0] - 1) + 1, self.dilation * (self.kernel[1] - 1) + 1

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.pad[0] - self.reach[0]) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.pad[1] - self.reach[1]) // self.stride + 1

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """The shape of the weight."""
        return self.outputs, self.inputs // self.groups, *self.kernel

    @property
    def reads_every_row(self) -> bool:
        """Whether the forward walks over the whole input, so that it can store it on the way."""
        return (self.out_height - 1) * self.stride + self.reach[0] - self.pad[0] >= self.height


def layout_for(g: Geometry) -> torch.memory_format:
    """The layout for torch's own convolution: channels_last, save for odd channel counts and what does not bear it."""
    even = g.inputs % 8 == 0 == g.outputs % 8 and g.groups == 1
    last = even and convolution_bears_it(g.inputs, g.kernel, (g.stride,), (g.dilation,))
    return torch.channels_last if last else torch.contiguous_format


def plane(height: int, width: int, lanes: int) -> int:
    """Floats between channels: one cache line more than needed, so that channels spread over cache sets."""
    return height * width * lanes + 16


def pixel_row(width: int, lanes: int) -> int:
    """Floats of a row whose pixels lie innermost: full vectors."""
    return -(-width // lanes) * lanes


def pixel_plane(height: int, width: int, lanes: int) -> int:
    """The same as `plane`, for pixels innermost."""
    return height * pixel_row(width, lanes) + 16


def shape_of(g: Geometry, lanes: int) -> ctypes.Structure:
    """The C view of a geometry: band height chosen so that a band fits the cache, larger where there is AVX-512."""
    top, left = (-(-(reach - 1 - pad) // g.stride) for reach, pad in zip(g.reach, g.pad, strict=True))
    bottom, right = ((g.stride - 1 + pad) // g.stride for pad in g.pad)
    across = max(-(-g.width // g.stride), g.out_width)
    row_bytes = max(g.inputs * (g.width + 2 * g.pad[1]) * g.stride, g.outputs * (across + left + right)) * lanes * 4
    down = max(-(-g.height // g.stride), g.out_height)
    rows = max(2, min(down, BAND_BYTES * max(8, lanes) // 8 // row_bytes // 2 * 2))
    in_band = ((rows - 1) * g.stride + g.reach[0]) * (g.width + 2 * g.pad[1]) + 1
    out_band = (rows + top + bottom) * (across + left + right) + 1
    shape: ctypes.Structure = Shape(
        0, g.inputs, g.outputs, g.height, g.width, g.reach[0], g.stride, *g.pad, g.out_height, g.out_width,
        plane(g.height, g.width, lanes), plane(g.out_height, g.out_width, lanes), rows,
        in_band * lanes, out_band * lanes, top, bottom, left, right, 0,
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
    """Output, input, row and column that every active weight reads, and where its value lies."""
    o, i, y, x = (a.numpy() for a in mask.reshape(g.weight).cpu().nonzero(as_tuple=True))
    down, right = (1, 1) if len(strides) == 2 else (0, strides[2]) if len(strides) == 3 else strides[2:]
    pick = o * strides[0] + i * strides[1] + y * down + x * right
    i = i + o // (g.outputs // g.groups) * (g.inputs // g.groups)
    return o, i, y * g.dilation, x * g.dilation, pick


def _read_by_one(g: Geometry, mask: Tensor) -> Tensor | None:
    """The mask and, for every input channel that no active weight reads, one pruned weight; None if there is none.

    Zero times what is not finite is not zero: so a channel that overflows is not swallowed.
    """
    some = mask.reshape(g.groups, g.outputs // g.groups, g.inputs // g.groups, -1)
    group, channel = (~some.any(3).any(1)).nonzero(as_tuple=True)
    if not len(channel):
        return None
    more = some.clone()
    more[group, channel % some.shape[1], channel, some.shape[3] // 2] = True
    return more


class PixelIndex:
    """The index of one mask for few pictures, with pixels innermost: forward only."""

    def __init__(self, g: Geometry, mask: Tensor, strides: tuple[int, ...], lanes: int) -> None:
        o, i, y, x, pick = _active(g, mask, strides)
        row, out_row = pixel_row(g.width, lanes), pixel_row(g.out_width, lanes)
        half = max(-(-(g.width + 2 * g.pad[1]) // g.stride), out_row + (g.reach[1] - 1) // g.stride)
        band_row = half * g.stride
        rows = max(1, min(g.out_height, BAND_BYTES // (4 * g.inputs * band_row * g.stride)))
        band = ((rows - 1) * g.stride + g.reach[0]) * band_row + lanes
        self.shape = PixelShape(
            0, g.inputs, g.outputs, g.height, g.width, g.reach[0], g.stride, *g.pad, g.out_height, g.out_width,
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
        s, (pad, side) = self.shape, g.pad
        band_width = g.width + 2 * side
        self._owned: list[object] = []
        patch = (g.reach[0] - 1 + 2 * g.stride) * (g.reach[1] - 1 + 4 * g.stride) * lanes * 4
        offset = i * s.in_band + (y * band_width + x) * lanes
        self.forward, _ = self._index(i, o, (g.inputs, g.outputs), patch, offset, pick)
        across = max(-(-g.width // g.stride), g.out_width) + s.left + s.right
        transposed = []
        for parity in range(g.stride**2):
            py, px = divmod(parity, g.stride)
            mine = np.flatnonzero(((py + pad - y) % g.stride == 0) & ((px + side - x) % g.stride == 0))
            down = (py + pad - y[mine]) // g.stride + s.top
            right = (px + side - x[mine]) // g.stride + s.left
            offset = o[mine] * s.out_band + (down * across + right) * lanes
            high, wide = (-(-(reach - 1) // g.stride) for reach in g.reach)
            patch = (high + 2) * (wide + 4) * lanes * 4
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


NOT_SEEN: tuple[Callable[[], Tensor | None], int, int] = (lambda: None, -1, 0)


class Pattern:
    """The index of one layer on one input size, for the mask and the layout of the weight that it was made for."""

    def __init__(self, module: nn.Module, geometry: Geometry, lanes: int, pixels: bool, sparse: bool) -> None:
        self.module, self.geometry, self.lanes, self.sparse = module, geometry, lanes, sparse
        self.kind = PixelIndex if pixels else LayerIndex
        self.index: LayerIndex | PixelIndex | None = None
        self.reads: LayerIndex | PixelIndex  # what the forward walks: it reads every channel
        self.seen = NOT_SEEN  # the weight, its version and address when its pruned entries were found to be zero
        self.sample = -1  # the place of one of them in memory: a write through `.data` changes no version

    def make(self, mask: Tensor | None, strides: tuple[int, ...]) -> LayerIndex | PixelIndex:
        """Index this mask."""
        g = self.geometry
        self.mask, self.version, self.strides = mask, -1 if mask is None else mask._version, strides
        active = torch.ones(g.weight, dtype=torch.bool) if mask is None else mask
        self.index, self.seen = self.other(active), NOT_SEEN
        more = _read_by_one(g, active)
        self.reads = self.index if more is None else self.other(more)
        at = np.unravel_index(int(active.view(torch.uint8).argmin()), active.shape)
        self.sample = -1 if bool(active[at]) else int(np.dot(at, strides))
        return self.index

    def other(self, mask: Tensor) -> LayerIndex | PixelIndex:
        """The index of another mask, for once."""
        return self.kind(self.geometry, mask, self.strides, self.lanes)
