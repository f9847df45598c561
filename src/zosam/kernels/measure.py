"""Time one layer both ways: on the kernels, and by torch in its fastest layout."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ctypes import addressof
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import library
from .index import Geometry, LayerIndex
from .library import CONV_BACKWARD, CONV_FORWARD, Calls, Library

Clock = Callable[[], float]
Name = TypeVar("Name")


def best(
    functions: Mapping[Name, Callable[[], object]], repeats: int, clock: Clock = time.perf_counter
) -> dict[Name, float]:
    """The least time of each, taken in turns so that a busy machine treats them alike."""
    least = dict.fromkeys(functions, float("inf"))
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if round_:  # the first round warms up
                least[name] = min(least[name], clock() - start)
    return least


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
        self.list = Calls(lib)
        self.weight = torch.randn(mask.shape) * mask
        self.index = LayerIndex(g, mask, self.weight.stride(), lib.lanes)
        self.index.shape.images = images
        blocks = -(-images // lib.lanes)
        shape = self.index.shape
        self.x = torch.randn(blocks * g.inputs * shape.in_plane)
        self.y = torch.randn(blocks * g.outputs * shape.out_plane)
        self.dx, self.dw = torch.empty_like(self.x), torch.zeros_like(self.weight)
        self.stats = torch.empty(blocks * g.outputs * 3 * lib.lanes)
        self.source, self.gradient = library.Source(x=self.x.data_ptr()), library.Source(x=self.y.data_ptr())
        self.out = torch.empty_like(self.y)

    def forward(self) -> None:
        sink = library.Sink(out=self.out.data_ptr(), stats=self.stats.data_ptr())
        i = self.index
        self.list.add(
            CONV_FORWARD, addressof(i.shape), addressof(self.source), addressof(i.forward), self.weight.data_ptr(),
            addressof(sink), torch.get_num_threads(), 0,
        )  # fmt: skip
        self.list.make()

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        sink = library.Sink(out=self.dx.data_ptr() if into else 0)
        i = self.index
        self.list.add(
            CONV_BACKWARD, addressof(i.shape), addressof(self.gradient), addressof(self.source), addressof(i.forward),
            addressof(i.transposed), addressof(i.counts), self.weight.data_ptr(), addressof(sink),
            self.dw.data_ptr() if of_weight else 0, 0, torch.get_num_threads(), 0,
        )  # fmt: skip
        self.list.make()


class DenseLayer(Layer):
    """The same layer in torch, channels_last."""

    def __init__(self, g: Geometry, images: int) -> None:
        last = torch.channels_last
        self.g = g
        self.x = torch.randn(images, g.inputs, g.height, g.width).contiguous(memory_format=last)
        self.y = torch.randn(images, g.outputs, g.out_height, g.out_width).contiguous(memory_format=last)
        self.weight = torch.randn(g.outputs, g.inputs, g.kernel, g.kernel).contiguous(memory_format=last)

    def forward(self) -> Tensor:
        return F.conv2d(self.x, self.weight, None, self.g.stride, self.g.pad)

    def backward(self, into: bool = True, of_weight: bool = True) -> None:
        g = self.g
        torch.ops.aten.convolution_backward(
            self.y, self.x, self.weight, None, [g.stride] * 2, [g.pad] * 2, [1, 1], False, [0, 0], 1,
            [into, of_weight, False],
        )  # fmt: skip
