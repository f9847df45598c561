"""From the operations of a program to its script: every buffer gets an address, every operation its call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch
from torch import nn

from . import library
from .index import pixel_row
from .library import (
    BATCH_NORM_BACKWARD,
    BATCH_NORM_FORWARD,
    CONV_BACKWARD,
    CONV_FORWARD,
    LAYER_NORM,
    MOVE_IN,
    MOVE_IN_FINITE,
    MOVE_OUT,
    PIXEL_CONV,
    PIXEL_POOL,
    PIXEL_WINDOW,
    SWEEP,
    WINDOW,
)  # fmt: skip
from .plan import (
    BackOp,
    BatchNorm,
    BatchNormBack,
    Buffer,
    Cat,
    CatBack,
    Conv,
    ConvBack,
    Enter,
    Forward,
    LayerNorm,
    LayerNormBack,
    Leave,
    Noise,
    Op,
    Pass,
    PassBack,
    Window,
    WindowBack,
)  # fmt: skip
from .script import THREADS, LayerCall, Script, Slot
from .torch_parts import TorchParts


class Binder(TorchParts):
    """Writes scripts for one piece of memory."""

    def forward(self, program: Forward, inputs: int, outputs: int) -> Script:
        """The calls of a forward program; every other one walks the batch from its end, where the cache is warm."""
        self._open(inputs, outputs, gradients=False)
        self.departures: list[tuple[tuple[int, ...], torch.memory_format]] = [((), self.layout)] * outputs
        self.keepdim = program.keepdim
        for turn, op in enumerate(program.ops):
            self._write(op, turn % 2)
        return self.script.close()

    def backward(self, ops: Sequence[BackOp], inputs: int, outputs: int, gradient_of: str) -> Script:
        """The calls of a backward program, with the gradient of active weights, of those that are wanted, or of all."""
        self._open(outputs, inputs, gradients=True)
        self.departures = [((), self.layout)] * inputs
        self.gradient_of = gradient_of
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
        sampled = self.gradients and self.gradient_of == "wanted"
        self.script.layers.append(LayerCall(pattern, self.keys.get((module, "weight")), own.stride(), at, sampled))

    def _pass(self, op: Pass, backwards: int) -> None:
        memory, like = self.memory, op.source.like
        sink = library.Sink(out=memory.at(op.out), stats=memory.at(op.sums))
        source = memory.source(op.source)
        source.m = memory.at(op.noise)
        pooled: int | Slot = 0
        if op.position is not None:
            shape = (memory.images, like.channels, 1, 1)
            self.departures[op.position] = shape if self.keepdim[op.position] else shape[:2], torch.contiguous_format
            pooled = Slot("departure", op.position)
        if memory.pixels and op.position is not None:
            row, source = pixel_row(like.width, self.lanes), memory.source(op.source, op.out)
            self.script.add(PIXEL_POOL, *self._size(like), row, source, pooled)
            return
        self._sweep(like, source, sink, pooled, backwards)

    def _sweep(
        self, like: Buffer, source: Any, sink: Any, pooled: int | Slot, backwards: int, among: Sequence[int] = ()
    ) -> None:
        """One element-wise pass over a tensor of a buffer's shape; with `pooled`, to or from means over its pixels.

        `among`: how many channels lie where it reads, and where it writes.
        """
        among = among or (like.channels, like.channels)
        self.script.add(SWEEP, *self._area(like), source or 0, sink, pooled, *among, THREADS, backwards)

    def _noise(self, op: Noise, backwards: int) -> None:
        self.script.pause(lambda run: self._draw(op, run))

    def _window(self, op: Window, backwards: int) -> None:
        structure = self._frame(op)
        structure.out = self.memory.at(op.out)
        self._points(structure, source=self.memory.source(op.source, op.made))
        if self.memory.pixels:
            rows = (pixel_row(buffer.width, self.lanes) for buffer in (op.source.like, op.out))
            self.script.add(PIXEL_WINDOW, structure, *rows)
        else:
            self.script.add(WINDOW, structure, THREADS)

    def _frame(self, op: Window) -> Any:
        """The C view of a pooling layer."""
        frame, out = op.frame, op.out
        images, channels, height, width, plane = self._size(op.source.like)
        return library.Window(
            images, channels, height, width, *frame.kernel, frame.stride, *frame.pad, out.height, out.width,
            plane, self.memory.plane(out), int(frame.largest), int(frame.padded),
        )  # fmt: skip

    def _points(self, structure: Any, **to: Any) -> None:
        """A structure that points to others."""
        for name, other in to.items():
            self.script.owned.append(other)
            setattr(structure, name, addressof(other))

    def _cat(self, op: Cat, backwards: int) -> None:
        first = 0
        for view in op.sources:
            like = view.like
            sink = library.Sink(out=self.memory.at(op.out) + 4 * first * self.memory.plane(op.out))
            self._sweep(like, self.memory.source(view), sink, 0, backwards, (like.channels, op.out.channels))
            first += like.channels

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
        memory = self.memory
        structure = self._rows(op.norm, out=memory.at(op.sink.out), add=memory.at(op.sink.add))
        self._points(structure, gradient=memory.gradient(op.parts))
        self.script.fill(structure, "gamma_gradient", self._gradient(op.norm.module, "weight"))
        self.script.fill(structure, "beta_gradient", self._gradient(op.norm.module, "bias"))
        self.script.add(LAYER_NORM, structure, THREADS)

    def _pass_back(self, op: PassBack, backwards: int) -> None:
        source = self.memory.gradient(op.parts) if op.parts else None
        if source is not None:
            source.m = self.memory.at(op.noise)
        pooled = 0 if op.position is None else Slot("arrival", op.position)
        self._sweep(op.like, source, self.memory.sink(op.sink), pooled, backwards)

    def _window_back(self, op: WindowBack, backwards: int) -> None:
        memory, structure = self.memory, self._frame(op.window)
        gradient, sink = memory.gradient(op.parts), memory.sink(op.sink)
        self._points(structure, source=memory.source(op.source), gradient=gradient, sink=sink)
        self.script.add(WINDOW, structure, THREADS)

    def _cat_back(self, op: CatBack, backwards: int) -> None:
        source = library.Source(x=self.memory.at(op.whole) + 4 * op.first * self.memory.plane(op.whole))
        among = (op.whole.channels, op.like.channels)
        self._sweep(op.like, source, self.memory.sink(op.sink), 0, backwards, among)

    def _conv_back(self, op: ConvBack, backwards: int) -> None:
        if op.conv.dense:
            return self.script.pause(lambda run: self._dense_backward(op, run))
        memory, script, module = self.memory, self.script, op.conv.module
        wanted = self._gradient(module, "weight")
        if self.gradient_of == "all" and wanted:
            script.pause(lambda run: self._dense_weight_gradient(op, run))
            wanted = 0
        at = script.add(
            CONV_BACKWARD, 0, memory.gradient(op.parts, op.store), memory.source(op.source), 0, 0, 0,
            self._parameter(module, "weight"), memory.sink(op.sink), wanted, self._gradient(module, "bias"), THREADS,
            backwards,
        )  # fmt: skip
        return self._layer(op.conv, at, at + 3, at + 4, at + 5)
