"""From the operations of a program to its script: every buffer gets an address, every operation its call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor, nn

from . import library
from .index import Geometry, layout_for, pixel_row
from .library import (
    BATCH_NORM_BACKWARD,
    BATCH_NORM_FORWARD,
    CONV_BACKWARD,
    CONV_FORWARD,
    LAYER_NORM,
    MOVE,
    MOVE_IN,
    MOVE_IN_FINITE,
    MOVE_OUT,
    PIXEL_CONV,
    PIXEL_MOVE,
    PIXEL_POOL,
    SWEEP,
)  # fmt: skip
from .memory import Memory
from .plan import (
    BackOp,
    BatchNorm,
    BatchNormBack,
    Buffer,
    Conv,
    ConvBack,
    Enter,
    Forward,
    LayerNorm,
    LayerNormBack,
    Leave,
    Op,
    Pass,
    PassBack,
)  # fmt: skip
from .script import THREADS, LayerCall, Run, Script, Slot

Key = tuple[nn.Module, str]


class Binder:
    """Writes scripts for one piece of memory; `keys` are the parameters as runs give them, `layout` that of outputs."""

    def __init__(self, memory: Memory, keys: Sequence[Key], layout: torch.memory_format) -> None:
        self.memory, self.layout, self.lanes = memory, layout, memory.lib.lanes
        self.keys = {key: i for i, key in enumerate(keys)}

    def forward(self, program: Forward, inputs: int, outputs: int) -> Script:
        """The calls of a forward program; every other one walks the batch from its end, where the cache is warm."""
        self._open(inputs, outputs, gradients=False)
        self.departures: list[tuple[tuple[int, ...], torch.memory_format]] = [((), self.layout)] * outputs
        self.keepdim = program.keepdim
        for turn, op in enumerate(program.ops):
            self._write(op, turn % 2)
        return self.script.close()

    def backward(self, ops: Sequence[BackOp], inputs: int, outputs: int, dense_gradient: bool) -> Script:
        """The calls of a backward program; with `dense_gradient`, weights that are pruned get theirs too."""
        self._open(outputs, inputs, gradients=True)
        self.departures = [((), self.layout)] * inputs
        self.dense_gradient = dense_gradient
        for turn, op in enumerate(ops):
            self._write(op, turn % 2)
        return self.script.close()

    def _open(self, arrivals: int, departures: int, gradients: bool) -> None:
        self.gradients = gradients
        order = [THREADS]
        for i in range(arrivals):
            order += [Slot("arrival", i), *(Slot("stride", i, axis) for axis in range(4))]
        order += [Slot("departure", i) for i in range(departures)]
        order += [Slot(kind, i) for kind in ("parameter", *["gradient"] * gradients) for i in range(len(self.keys))]
        self.script = Script(self.memory.lib, self.memory.layers, self.memory.images, order)

    def _write(self, op: Op | BackOp, backwards: int) -> None:
        name = re.sub("(?<!^)(?=[A-Z])", "_", type(op).__name__).lower()  # ConvBack: _conv_back
        getattr(self, f"_{name}")(op, backwards)

    def _parameter(self, module: nn.Module, name: str) -> int | Slot:
        """Where a parameter lies; fixed layers bring their own."""
        position = self.keys.get((module, name))
        if position is not None:
            return Slot("parameter", position)
        own = module._parameters[name]
        return 0 if own is None else own.data_ptr()

    def _gradient(self, module: nn.Module, name: str) -> int | Slot:
        return Slot("gradient", self.keys[module, name]) if (module, name) in self.keys else 0

    # --- edges -------------------------------------------------------------------------------------------------------

    def _size(self, buffer: Buffer) -> tuple[int, int, int, int, int]:
        return self.memory.images, buffer.channels, buffer.height, buffer.width, self.memory.plane(buffer)

    def _move(self, source: int | Slot, to: int | Slot, buffer: Buffer, strides: Sequence[int | Slot], way: int) -> Any:
        """The call that moves a buffer in or out."""
        if self.memory.pixels:
            return PIXEL_MOVE, source, to, *self._size(buffer), pixel_row(buffer.width, self.lanes), *strides, way
        return MOVE, source, to, *self._size(buffer), *strides, way, THREADS

    def _enter(self, op: Enter, backwards: int) -> None:
        i = op.position
        strides = [Slot("stride", i, axis) for axis in range(4)]
        way = MOVE_IN if self.gradients else MOVE_IN_FINITE
        self.script.add(*self._move(Slot("arrival", i), self.memory.at(op.out), op.out, strides, way))

    def _leave(self, op: Leave, backwards: int) -> None:
        size = self._size(op.source)[:4]
        self.departures[op.position] = size, self.layout
        strides = torch.empty(size, memory_format=self.layout, device="meta").stride()
        to = Slot("departure", op.position)
        self.script.add(*self._move(self.memory.at(op.source), to, op.source, strides, MOVE_OUT))

    # --- forward -----------------------------------------------------------------------------------------------------

    def _conv(self, op: Conv, backwards: int) -> None:
        if op.dense:
            return self.script.pause(lambda run: self._dense_forward(op, run))
        memory, script = self.memory, self.script
        sink = library.Sink(out=memory.at(op.out), add=memory.at(op.add), stats=memory.at(op.sums))
        script.fill(sink, "bias", self._parameter(op.module, "bias"))
        weight = self._parameter(op.module, "weight")
        source = memory.source(op.source, op.made)
        if memory.pixels:
            at = script.add(PIXEL_CONV, 0, source, 0, weight, sink, THREADS)
        else:
            at = script.add(CONV_FORWARD, 0, source, 0, weight, sink, THREADS, backwards)
        return self._layer(op, at, at + 2)

    def _layer(self, op: Conv, *at: int) -> None:
        module, pattern = op.module, self.memory.layers.pattern(op.module, op.geometry, self.memory.pixels)
        own = module._parameters["weight"]
        assert own is not None
        self.script.layers.append(LayerCall(pattern, self.keys.get((module, "weight")), own.stride(), at))

    def _pass(self, op: Pass, backwards: int) -> None:
        memory, like = self.memory, op.source.like
        sink = library.Sink(out=memory.at(op.out), stats=memory.at(op.sums))
        pooled: int | Slot = 0
        if op.position is not None:
            shape = (memory.images, like.channels, 1, 1)
            self.departures[op.position] = shape if self.keepdim[op.position] else shape[:2], torch.contiguous_format
            pooled = Slot("departure", op.position)
        if memory.pixels and op.position is not None:
            row, source = pixel_row(like.width, self.lanes), memory.source(op.source, op.out)
            self.script.add(PIXEL_POOL, *self._size(like), row, source, pooled)
            return
        self._sweep(like, memory.source(op.source), sink, pooled, backwards)

    def _sweep(self, like: Buffer, source: Any, sink: Any, pooled: int | Slot, backwards: int) -> None:
        """One element-wise pass over a tensor of a buffer's shape; with `pooled`, to or from means over its pixels."""
        self.script.add(SWEEP, *self._area(like), source or 0, sink, pooled, THREADS, backwards)

    def _area(self, like: Buffer) -> tuple[int, int, int, int]:
        """Images, channels, vectors and floats of a channel, as an element-wise pass sees them."""
        images, channels, height, width, plane = self._size(like)
        if self.memory.pixels:  # each picture is a block of its own
            return images * self.lanes, channels, height * pixel_row(width, self.lanes) // self.lanes, plane
        return images, channels, height * width, plane

    def _batch_norm(self, op: BatchNorm, backwards: int) -> None:
        structure = self.memory.norms[op]
        self.script.fill(structure, "gamma", self._parameter(op.module, "weight"))
        self.script.fill(structure, "beta", self._parameter(op.module, "bias"))
        self.script.norms.append((structure, op.module))
        self.script.add(BATCH_NORM_FORWARD, structure, self.memory.at(op.sums or op.buffer))

    def _layer_norm(self, op: LayerNorm, backwards: int) -> None:
        structure = self._rows(op, out=self.memory.at(op.out))
        self.script.fill(structure, "beta", self._parameter(op.module, "bias"))
        self.script.add(LAYER_NORM, structure, THREADS)

    def _rows(self, op: LayerNorm, **more: int) -> Any:
        """The C view of a layer norm."""
        images, channels, height, width, plane = self._size(op.source)
        x, eps = self.memory.at(op.source), op.module.eps
        area = height * width
        structure = library.LayerNorm(images=images, channels=channels, area=area, plane=plane, eps=eps, x=x, **more)
        self.script.fill(structure, "gamma", self._parameter(op.module, "weight"))
        return structure

    # --- backward ----------------------------------------------------------------------------------------------------

    def _batch_norm_back(self, op: BatchNormBack, backwards: int) -> None:
        wanted = (self._gradient(op.norm.module, name) for name in ("weight", "bias"))
        self.script.add(BATCH_NORM_BACKWARD, self.memory.norms[op.norm], self.memory.at(op.sums), *wanted)

    def _layer_norm_back(self, op: LayerNormBack, backwards: int) -> None:
        memory, gradient = self.memory, self.memory.gradient(op.parts)
        structure = self._rows(op.norm, out=memory.at(op.sink.out), add=memory.at(op.sink.add))
        self.script.owned.append(gradient)
        structure.gradient = addressof(gradient)
        self.script.fill(structure, "gamma_gradient", self._gradient(op.norm.module, "weight"))
        self.script.fill(structure, "beta_gradient", self._gradient(op.norm.module, "bias"))
        self.script.add(LAYER_NORM, structure, THREADS)

    def _pass_back(self, op: PassBack, backwards: int) -> None:
        source = self.memory.gradient(op.parts) if op.parts else None
        pooled = 0 if op.position is None else Slot("arrival", op.position)
        self._sweep(op.like, source, self.memory.sink(op.sink), pooled, backwards)

    def _conv_back(self, op: ConvBack, backwards: int) -> None:
        if op.conv.dense:
            return self.script.pause(lambda run: self._dense_backward(op, run))
        memory, script, module = self.memory, self.script, op.conv.module
        wanted = self._gradient(module, "weight")
        if self.dense_gradient and wanted:
            script.pause(lambda run: self._dense_weight_gradient(op, run))
            wanted = 0
        at = script.add(
            CONV_BACKWARD, 0, memory.gradient(op.parts, op.store), memory.source(op.source), 0, 0, 0,
            self._parameter(module, "weight"), memory.sink(op.sink), wanted, self._gradient(module, "bias"), THREADS,
            backwards,
        )  # fmt: skip
        return self._layer(op.conv, at, at + 3, at + 4, at + 5)

    # --- what torch computes -----------------------------------------------------------------------------------------

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
        return weight.reshape(g.outputs, g.inputs, g.kernel, g.kernel)

    def _dense_forward(self, op: Conv, run: Run) -> None:
        g, like = op.geometry, op.source.like
        plain = self._move_out(self.memory.at(like), like, layout_for(g))
        bias = run.parameters[self.keys[op.module, "bias"]] if (op.module, "bias") in self.keys else None
        self._move_in(nn.functional.conv2d(plain, self._weight(op, run), bias, g.stride, g.pad), op.out)

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
        self.memory.lib.call(SWEEP, *self._area(like), addressof(source), addressof(sink), 0, threads, 0)
        return self._move_out(aligned, like, layout)


def _torch_backward(
    g: Geometry, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias, those that are wanted."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, [g.outputs], [g.stride] * 2, [g.pad] * 2, [1, 1], False, [0, 0], 1, wanted
    )
    return found
