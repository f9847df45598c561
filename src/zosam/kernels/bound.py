"""A program bound to memory: every buffer has an address, every operation its C structures."""

from __future__ import annotations

from ctypes import addressof
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import library
from .layers import Layers
from .library import SWEEP, Calls, Library
from .memory import backward_traffic, forward_traffic, place, room
from .plan import Activation, Buffer, Forward, NormStep, View
from .plan_backward import BackOp, GradientSink, Part

VECTORS = ("mean", "rstd", "scale", "shift", "gz", "gb")
ACTIVATIONS: tuple[Activation, ...] = ("", "relu", "gelu")  # by their number in C


@dataclass
class Run:
    """What one run of a program reads and leaves."""

    calls: Calls
    parameters: dict[tuple[nn.Module, str], Tensor]
    inputs: list[Tensor] = field(default_factory=list)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    gradients: dict[tuple[nn.Module, str], Tensor] = field(default_factory=dict)
    output_gradients: list[Tensor | None] = field(default_factory=list)
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    dense_gradient: bool = False
    counted: list[Tensor] = field(default_factory=list)  # the batch counters of norms that saw this batch
    threads: int = field(default_factory=torch.get_num_threads)

    def parameter(self, module: nn.Module, name: str) -> Tensor | None:
        """What stands for a parameter in this run; fixed layers bring their own."""
        given = self.parameters.get((module, name))
        return module._parameters[name] if given is None else given  # the short way to an attribute of a module

    def weight(self, module: nn.Module) -> Tensor:
        weight = self.parameter(module, "weight")
        assert weight is not None
        return weight


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class Memory:
    """The arena of one program and the addresses in it; leased to one run at a time."""

    def __init__(
        self, lib: Library, layers: Layers, forward: Forward, images: int, adjoint: list[BackOp] | None
    ) -> None:
        self.lib, self.layers, self.images = lib, layers, images
        self.blocks = -(-images // lib.lanes)
        offsets, total = place([forward_traffic(op) for op in forward.ops], self.size, keep=adjoint is not None)
        if adjoint is not None:
            more, extra = place([backward_traffic(op) for op in adjoint], self.size, keep=False)
            offsets |= {b: total + offset for b, offset in more.items()}
            total += extra
        self.arena = room(total + 16)
        self.base = (-self.arena.data_ptr() // 4) % 16
        self.offset = offsets
        self.norms: dict[NormStep, Any] = {}
        self.vectors: dict[NormStep, Tensor] = {}
        for op in forward.ops:
            if isinstance(op, NormStep):
                self.vectors[op] = torch.empty(len(VECTORS), op.buffer.channels)
                self.norms[op] = library.Norm(
                    images=images,
                    channels=op.buffer.channels,
                    area=op.buffer.height * op.buffer.width,
                    **{name: self.vector(op, name) for name in VECTORS},
                )

    def size(self, buffer: Buffer) -> int:
        """Floats that a buffer takes."""
        inner = 3 * self.lib.lanes if buffer.sums else self.layers.plane(buffer.height, buffer.width)
        return -(-self.blocks * buffer.channels * inner // 16) * 16

    def at(self, buffer: Buffer | None) -> int:
        """The address of a buffer."""
        return 0 if buffer is None else self.arena.data_ptr() + 4 * (self.base + self.offset[buffer])

    def sweep(
        self, run: Run, like: Buffer, source: Any, sink: Any, pooled: Tensor | None = None, backwards: int = 0
    ) -> None:
        """One element-wise pass over a tensor of a buffer's shape; with `pooled`, to or from means over its pixels."""
        run.calls.add(
            SWEEP, self.images, like.channels, like.height * like.width, self.layers.plane(like.height, like.width),
            0 if source is None else addressof(source), addressof(sink), address(pooled), run.threads, backwards,
        )  # fmt: skip

    def vector(self, norm: NormStep, name: str) -> int:
        """The address of one of the per-channel vectors of a norm."""
        return self.vectors[norm][VECTORS.index(name)].data_ptr()

    def source(self, view: View, out: Buffer | None = None) -> Any:
        """A view as a C Source."""
        first = view.terms[0]
        s = library.Source(activation=ACTIVATIONS.index(view.activation), out=self.at(out), x=self.at(first.buffer))
        if first.norm is not None:
            s.xs, s.xc, s.xb = (self.vector(first.norm, name) for name in ("scale", "mean", "shift"))
        if len(view.terms) == 2:
            second = view.terms[1]
            s.y = self.at(second.buffer)
            if second.norm is not None:
                s.ys, s.yc, s.yb = (self.vector(second.norm, name) for name in ("scale", "mean", "shift"))
        return s

    def gradient(self, parts: list[Part], out: Buffer | None = None) -> Any:
        """Contributions to a gradient as a C Source; the one through a norm, if any, comes first."""
        s = library.Source(out=self.at(out), x=self.at(parts[0].buffer))
        norm, free = parts[0].norm, ["y", "z"]
        if norm is not None:
            s.xs, s.xb = self.vector(norm, "scale"), self.vector(norm, "gb")
            s.y, s.ys, s.yc = self.at(norm.buffer), self.vector(norm, "gz"), self.vector(norm, "mean")
            free = ["z"]
        for name, part in zip(free, parts[1:], strict=False):
            setattr(s, name, self.at(part.buffer))
        return s

    def sink(self, sink: GradientSink) -> Any:
        """A gradient's sink as a C Sink."""
        k = library.Sink(out=self.at(sink.out), add=self.at(sink.add), stats=self.at(sink.sums))
        if sink.gate is not None:
            k.gate, k.activation = self.at(sink.gate.buffer), ACTIVATIONS.index(sink.activation)
            if sink.gate.norm is not None:
                k.gs, k.gc, k.gb = (self.vector(sink.gate.norm, name) for name in ("scale", "mean", "shift"))
        if sink.norm is not None:
            k.with_, k.center = self.at(sink.norm.buffer), self.vector(sink.norm, "mean")
        return k
