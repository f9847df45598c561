"""A layer on random data, ready to be timed: on the kernels, and by torch in its fastest layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import addressof

import torch
from torch import Tensor
from torch.nn import functional as F

from ..build import CONV_BACKWARD, CONV_FORWARD, MOVE, MOVE_IN, Library
from ..memory import PAST_CACHES, Sink, Source
from .index import Geometry, LayerIndex, layout_for, plane


class Layer(ABC):
    """A layer on random data, ready to be timed."""

    @abstractmethod
    def forward(self) -> object: ...

    @abstractmethod
    def backward(self, into: bool = True, of_weight: bool = True) -> None: ...

    def both(self) -> None:
        self.forward()
        self.backward()

    def calls(self) -> dict[str, Callable[[], object]]:
        return {
            "forward": self.forward,
            "input_gradient": lambda: self.backward(of_weight=False),
            "weight_gradient": lambda: self.backward(into=False),
            "backward": self.backward,
        }


class SparseLayer(Layer):
    """A layer on the kernels, in the blocked layout."""

    def __init__(self, lib: Library, g: Geometry, mask: Tensor, images: int) -> None:
        self.lib = lib
        self.weight = torch.randn(mask.shape) * mask
        self.index = LayerIndex(g, mask, self.weight.stride(), lib.lanes)
        self.index.shape.images = images
        blocks = -(-images // lib.lanes)
        shape = self.index.shape
        self.x = torch.randn(blocks * g.inputs * shape.in_plane)
        self.y = torch.randn(blocks * g.outputs * shape.out_plane)
        self.dx, self.dw = torch.empty_like(self.x), torch.zeros_like(self.weight)
        self.stats = torch.empty(blocks * g.outputs * 3 * lib.lanes)
        self.source, self.gradient = Source(x=self.x.data_ptr()), Source(x=self.y.data_ptr())
        self.out = torch.empty_like(self.y)

    def forward(self) -> None:
        sink = Sink(out=self.out.data_ptr(), stats=self.stats.data_ptr(), past=4 * self.out.numel() >= PAST_CACHES)
        i = self.index
        self.lib.call(
            CONV_FORWARD, addressof(i.shape), addressof(self.source), addressof(i.forward), self.weight.data_ptr(),
            addressof(sink), torch.get_num_threads(), 0,
        )  # fmt: skip

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        sink = Sink(out=self.dx.data_ptr() if into else 0, past=4 * self.dx.numel() >= PAST_CACHES)
        i = self.index
        self.lib.call(
            CONV_BACKWARD, addressof(i.shape), addressof(self.gradient), addressof(self.source), addressof(i.forward),
            addressof(i.transposed), addressof(i.counts), self.weight.data_ptr(), addressof(sink),
            self.dw.data_ptr() if of_weight else 0, 0, torch.get_num_threads(), 0,
        )  # fmt: skip


class DenseLayer(Layer):
    """The same layer in torch, in its fastest layout."""

    def __init__(self, g: Geometry, images: int) -> None:
        layout, self.g = layout_for(g), g
        self.x = torch.randn(images, g.inputs, g.height, g.width).contiguous(memory_format=layout)
        self.y = torch.randn(images, g.outputs, g.out_height, g.out_width).contiguous(memory_format=layout)
        self.weight = torch.randn(g.weight).contiguous(memory_format=layout)

    def forward(self) -> Tensor:
        g = self.g
        return F.conv2d(self.x, self.weight, None, g.stride, g.pad, g.dilation, g.groups)

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        g = self.g
        torch.ops.aten.convolution_backward(
            self.y, self.x, self.weight, None, [g.stride] * 2, g.pad, [g.dilation] * 2, False, [0, 0], g.groups,
            [into, of_weight, False],
        )  # fmt: skip


def rivals(
    lib: Library, g: Geometry, active: Tensor, images: int, backward: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A layer in torch, which pays for changing layouts, and on the kernels; with or without backward."""
    sparse, dense = SparseLayer(lib, g, active, images), DenseLayer(g, images)
    moved = [(g.inputs, g.height, g.width), (g.outputs, g.out_height, g.out_width)]
    plain = [torch.empty(images, *size).contiguous(memory_format=torch.channels_last) for size in moved]
    blocked = [torch.empty_like(sparse.x), torch.empty_like(sparse.y)]

    def move() -> None:
        for p, b in zip(plain, blocked, strict=True):
            n, c, h, w = p.shape
            size = (n, c, h, w, plane(h, w, lib.lanes))
            lib.call(MOVE, p.data_ptr(), b.data_ptr(), *size, *p.stride(), MOVE_IN, torch.get_num_threads())

    def moved_and_dense() -> None:
        for _ in range(3 if backward else 1):
            move()
        dense.both() if backward else dense.forward()

    return moved_and_dense, sparse.both if backward else sparse.forward
