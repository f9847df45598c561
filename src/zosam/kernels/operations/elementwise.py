"""Activations, sums, and channels side by side: what needs one pass over its inputs, or none of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Node
from torch.nn import functional as F

from ..build import PIXEL_POOL
from ..lower import Slot
from ..memory import Sink, Source
from .base import Activation, Buffer, GradientSink, Op, Part, Step, Term, Traffic, View, arguments, given
from .convolution import Conv
from .index import pixel_row

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint, Planner

ADD = {operator.add, operator.iadd, torch.add}
RELU: set[Callable[..., Any]] = {F.relu, F.relu_, torch.relu, torch.relu_}
CURVES: dict[Any, Activation] = {
    nn.GELU: "gelu", nn.ReLU6: "relu6", nn.Hardswish: "hardswish", nn.SiLU: "silu",
    F.gelu: "gelu", F.relu6: "relu6", F.hardswish: "hardswish", F.silu: "silu",
}  # fmt: skip


def of_module(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    inplace = bool(getattr(module, "inplace", False))
    if type(module) is nn.ReLU:
        return Relu(name, inputs, module, inplace)
    if type(module) in CURVES and getattr(module, "approximate", "none") == "none":
        return Curve(name, inputs, module, inplace, activation=CURVES[type(module)])
    return None


def of_call(node: Node, inputs: list[str]) -> Step | None:
    if node.target in ("relu", "relu_"):
        return Relu(node.name, inputs, inplace=node.target == "relu_")
    if node.target in ADD and len(node.args) == 2 == len(inputs) and not node.kwargs:
        return Add(node.name, inputs, inplace=node.target is operator.iadd)
    if node.target in RELU and len(inputs) == 1:
        inplace = bool(node.kwargs.get("inplace")) or node.target in (F.relu_, torch.relu_)
        return Relu(node.name, inputs, inplace=inplace)
    if node.target in CURVES and len(inputs) == 1 and node.kwargs.get("approximate", "none") == "none":
        inplace = bool(node.kwargs.get("inplace")) or node.args[1:] == (True,)
        return Curve(node.name, inputs, inplace=inplace, activation=CURVES[node.target])
    return _cat(node) if node.target is torch.cat else None


def _cat(node: Node) -> Step | None:
    named = arguments(node, "tensors", "dim")
    tensors = named.pop("tensors", None)
    if named != {"dim": 1} or not isinstance(tensors, (tuple, list)) or not all(isinstance(x, Node) for x in tensors):
        return None
    return Beside(node.name, [x.name for x in tensors])


class Relu(Step):
    kind = "relu"

    def plan(self, planner: Planner) -> None:
        name, view = planner.view(self.inputs[0])
        if view.activation not in ("", "relu") or (not view.raw and planner.uses[name] > 1):
            view = View([Term(planner.store(name))])
        planner.views[self.name] = View(view.terms, "relu")


@dataclass
class Curve(Step):
    """An activation that is no ReLU."""

    activation: Activation = ""
    kind = "curve"

    def plan(self, planner: Planner) -> None:
        name, view = planner.view(self.inputs[0])
        lazy = view.raw or (len(view.terms) == 1 and not view.activation and planner.uses[name] == 1)
        planner.views[self.name] = View(view.terms if lazy else [Term(planner.store(name))], self.activation)


class Add(Step):
    """The sum of two values: a residual connection."""

    kind = "add"

    def plan(self, planner: Planner) -> None:
        if self.inputs[0] == self.inputs[1]:
            raise ValueError("a value added to itself")
        (first, mine), (second, other) = both = [planner.view(name) for name in self.inputs]
        last = planner.program.ops[-1]
        for name, view, add in ((first, mine, other), (second, other, mine)):
            if isinstance(last, Conv) and planner.uses[name] == 1 and last.can_add(view, add):
                last.add = add.like
                planner.views[self.name] = View([Term(view.like)])
                return
        terms: list[Term] = []
        for name, view in both:
            lazy = len(view.terms) == 1 and not view.activation and (view.raw or planner.uses[name] == 1)
            terms += view.terms if lazy else [Term(planner.store(name))]
        if terms[0].buffer.size != terms[1].buffer.size:
            raise ValueError("shapes do not match")
        planner.views[self.name] = View(terms)


class Beside(Step):
    """Channels of several values, one after the other."""

    kind = "cat"

    def works_on(self, now: str) -> str:
        return "image" if now == "rows" else now or "image"  # over channels, be it of pictures or of lines

    def plan(self, planner: Planner) -> None:
        pairs = [planner.view(name) for name in self.inputs]
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a value put beside itself")
        views = [planner.once(name, view) for name, view in pairs]
        if len({v.like.size[1:] for v in views}) > 1:
            raise ValueError("shapes do not match")
        out = Buffer(sum(v.like.channels for v in views), *views[0].like.size[1:])
        planner.put(self, Cat(views, out), out)


@dataclass(eq=False)
class Pass(Op):
    """One element-wise pass: store the view, sum it for a batch norm, or average it over its pixels."""

    source: View
    out: Buffer | None = None
    sums: Buffer | None = None
    position: int | None = None  # the output that takes the averages
    keepdim: bool = False  # of these
    noise: Buffer | None = None  # multiplied with the view

    def traffic(self) -> Traffic:
        source, out = self.source.buffers, self.out
        return Traffic(source + given(self.noise), given(out, self.sums), [(out, b) for b in source if out])

    def differentiate(self, adjoint: Adjoint) -> None:
        known, like = adjoint.pending.pop(self.out, []) if self.out else [], self.source.like
        if self.position is None and not known:
            return
        parts, others = (
            (adjoint.readable(known, like), None) if self.position is None else ([], adjoint.plain(known, like))
        )
        sink = adjoint.sink(View(self.source.terms, self.source.activation, self.out), others)
        adjoint.ops.append(PassBack(parts, sink, like, self.position, self.noise))
        adjoint.distribute(self.source, sink)

    def write(self, to: Writer, backwards: int) -> None:
        memory, like = to.memory, self.source.like
        pooled: int | Slot = 0
        if self.position is not None:
            shape = (memory.images, like.channels, 1, 1)
            to.departures[self.position] = shape if self.keepdim else shape[:2], torch.contiguous_format
            pooled = Slot("departure", self.position)
            if memory.pixels:
                row, source = pixel_row(like.width, memory.lanes), memory.source(self.source, self.out)
                to.script.add(PIXEL_POOL, *memory.extent(like), row, source, pooled)
                return
        sink = Sink(out=memory.at(self.out), stats=memory.at(self.sums))
        source = memory.source(self.source)
        source.m = memory.at(self.noise)
        to.sweep(like, source, sink, pooled, backwards)


@dataclass(eq=False)
class PassBack(Op):
    """An element-wise pass over gradients; with a position, the spread of that output's pooled gradient."""

    parts: list[Part]
    sink: GradientSink
    like: Buffer
    position: int | None = None
    noise: Buffer | None = None

    def traffic(self) -> Traffic:
        return self.sink.traffic(self.parts, into=self.sink.out)

    def write(self, to: Writer, backwards: int) -> None:
        source = to.memory.gradient(self.parts) if self.parts else None
        if source is not None:
            source.m = to.memory.at(self.noise)
        pooled = 0 if self.position is None else Slot("arrival", self.position)
        to.sweep(self.like, source, to.memory.sink(self.sink), pooled, backwards)


@dataclass(eq=False)
class Cat(Op):
    """Channels of several views, one after the other."""

    sources: list[View]
    out: Buffer

    def traffic(self) -> Traffic:
        return Traffic([buffer for view in self.sources for buffer in view.buffers], [self.out])

    def differentiate(self, adjoint: Adjoint) -> None:
        whole = adjoint.plain(adjoint.pending.pop(self.out, []), self.out)
        first = 0
        for view in self.sources:
            if whole is not None and not (view.raw and view.like in adjoint.unwanted):
                sink = adjoint.joining(view.like) if view.raw else adjoint.sink(view, None)
                adjoint.ops.append(CatBack(whole, first, view.like, sink))
                if not view.raw:
                    adjoint.distribute(view, sink)
            first += view.like.channels

    def write(self, to: Writer, backwards: int) -> None:
        first, memory = 0, to.memory
        for view in self.sources:
            channels = view.like.channels
            sink = Sink(out=memory.at(self.out) + 4 * first * memory.plane(self.out))
            to.sweep(view.like, memory.source(view), sink, 0, backwards, (channels, self.out.channels))
            first += channels


@dataclass(eq=False)
class CatBack(Op):
    """The gradient of one of several views whose channels were put together: that from channel `first` on."""

    whole: Buffer
    first: int
    like: Buffer
    sink: GradientSink

    def traffic(self) -> Traffic:
        return self.sink.traffic([Part(self.whole)])

    def write(self, to: Writer, backwards: int) -> None:
        source = Source(x=to.memory.at(self.whole) + 4 * self.first * to.memory.plane(self.whole))
        among = (self.whole.channels, self.like.channels)
        to.sweep(self.like, source, to.memory.sink(self.sink), 0, backwards, among)
