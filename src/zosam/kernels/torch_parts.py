"""What torch computes inside a region, on its own layouts: layers kept dense, whole gradients, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import library
from .edges import as_image, plain_shape
from .index import Geometry, layout_for, pixel_row
from .library import MOVE, MOVE_IN, MOVE_OUT, PIXEL_MOVE, SWEEP
from .memory import Memory
from .plan import Buffer, Conv, ConvBack, Noise
from .script import THREADS, Run, Slot

Key = tuple[nn.Module, str]


class TorchParts:
    """Works on one piece of memory; `keys` are the parameters as runs give them, `layout` that of outputs."""

    def __init__(self, memory: Memory, keys: Sequence[Key], layout: torch.memory_format) -> None:
        self.memory, self.layout, self.lanes = memory, layout, memory.lib.lanes
        self.keys = {key: i for i, key in enumerate(keys)}

    def _size(self, buffer: Buffer) -> tuple[int, int, int, int, int]:
        return self.memory.images, buffer.channels, buffer.height, buffer.width, self.memory.plane(buffer)

    def _move(self, source: int | Slot, to: int | Slot, buffer: Buffer, strides: Sequence[int | Slot], way: int) -> Any:
        """The call that moves a buffer in or out."""
        if self.memory.pixels:
            return PIXEL_MOVE, source, to, *self._size(buffer), pixel_row(buffer.width, self.lanes), *strides, way
        return MOVE, source, to, *self._size(buffer), *strides, way, THREADS

    def _area(self, like: Buffer) -> tuple[int, int, int, int]:
        """Images, channels, vectors and floats of a channel, as an element-wise pass sees them."""
        images, channels, height, width, plane = self._size(like)
        if self.memory.pixels:  # each picture is a block of its own
            return images * self.lanes, channels, height * pixel_row(width, self.lanes) // self.lanes, plane
        return images, channels, height * width, plane

    def _move_out(self, address: int, buffer: Buffer, layout: torch.memory_format) -> Tensor:
        """Blocked -> [N, C, H, W] in one of torch's own layouts."""
        plain = torch.empty(self._size(buffer)[:4], memory_format=layout)
        self._call(self._move(address, plain.data_ptr(), buffer, plain.stride(), MOVE_OUT))
        return plain

    def _move_in(self, plain: Tensor, buffer: Buffer) -> None:
        """[N, C, H, W] in any strides -> blocked."""
        self._call(self._move(plain.data_ptr(), self.memory.at(buffer), buffer, plain.stride(), MOVE_IN))

    def _call(self, words: Sequence[int | Slot]) -> None:
        """One call now, in which the number of threads alone is open."""
        self.memory.lib.call(*(w if isinstance(w, int) else torch.get_num_threads() for w in words))

    def _wanted(self, run: Run, module: nn.Module, name: str) -> Tensor | None:
        return run.gradients[self.keys[module, name]] if (module, name) in self.keys else None

    def _weight(self, conv: Conv, run: Run) -> Tensor:
        g, position = conv.geometry, self.keys.get((conv.module, "weight"))
        weight = conv.module.weight if position is None else run.parameters[position]
        assert isinstance(weight, Tensor)
        return weight.reshape(g.weight)

    def _draw(self, op: Noise, run: Run) -> None:
        """Dropout of ones, in the shape and layout that torch would give it: the same seed drops the same entries."""
        shape = plain_shape(run.kind, run.lead, self._size(op.out)[:4])
        layout = self.layout if len(shape) == 4 else torch.contiguous_format
        drawn = op.draw(torch.empty(shape, memory_format=layout).fill_(1.0))
        self._move_in(as_image(drawn, run.kind), op.out)

    def _dense_forward(self, op: Conv, run: Run) -> None:
        g, like = op.geometry, op.source.like
        plain = self._move_out(self.memory.at(like), like, layout_for(g))
        bias = run.parameters[self.keys[op.module, "bias"]] if (op.module, "bias") in self.keys else None
        self._move_in(F.conv2d(plain, self._weight(op, run), bias, g.stride, g.pad, g.dilation, g.groups), op.out)

    def _dense_backward(self, op: ConvBack, run: Run) -> None:
        conv, like, into = op.conv, op.source.like, op.sink.out
        layout = layout_for(conv.geometry)
        inputs = self._move_out(self.memory.at(like), like, layout)
        gradient = self._move_out(self.memory.at(op.parts[0].buffer), conv.out, layout)
        own = [self._wanted(run, conv.module, name) for name in ("weight", "bias")]
        wanted = (into is not None, own[0] is not None, own[1] is not None)
        found, *gradients = _torch_backward(conv.geometry, gradient, inputs, self._weight(conv, run), wanted)
        for mine, theirs in zip(own, gradients, strict=True):
            if mine is not None:
                mine.copy_(theirs.view(mine.shape))
        if into is not None:
            self._move_in(found, into)

    def _dense_weight_gradient(self, op: ConvBack, run: Run) -> None:
        """The gradient at every position, pruned ones too: a growing method looks at it now and then."""
        out = self._wanted(run, op.conv.module, "weight")
        if out is None:
            return
        g = op.conv.geometry
        inputs = self._evaluated(self.memory.source(op.source), op.source.like, layout_for(g))
        gradient = self._evaluated(self.memory.gradient(op.parts), op.conv.out, layout_for(g))
        found = _torch_backward(g, gradient, inputs, self._weight(op.conv, run), (False, True, False))[1]
        out.copy_(found.view(out.shape))

    def _evaluated(self, source: Any, like: Buffer, layout: torch.memory_format) -> Tensor:
        """What a Source describes, in one of torch's own layouts."""
        space = torch.empty(self.memory.size(like) + 16)
        aligned = space.data_ptr() + 4 * ((-space.data_ptr() // 4) % 16)
        sink, threads = library.Sink(out=aligned), torch.get_num_threads()
        self.memory.lib.call(
            SWEEP, *self._area(like), addressof(source), addressof(sink), 0, *[like.channels] * 2, threads, 0
        )
        return self._move_out(aligned, like, layout)


def _torch_backward(
    g: Geometry, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias, those that are wanted."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, [g.outputs], [g.stride] * 2, g.pad, [g.dilation] * 2, False, [0, 0], g.groups, wanted
    )
    return found
