"""Convolutions and linear layers: a linear layer is a 1 x 1 convolution of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from torch import nn
from torch.fx import Node
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..build import CONV_BACKWARD, CONV_FORWARD, PIXEL_CONV
from ..lower import THREADS
from ..memory import Sink
from . import dense
from .base import Buffer, GradientSink, Op, Part, Step, Term, Traffic, View, arguments, given
from .index import Geometry

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint, Planner


def of_module(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    if isinstance(module, nn.Conv1d | nn.Conv2d) and type(module) in (nn.Conv1d, nn.Conv2d):
        on = "line" if type(module) is nn.Conv1d else "image"
        return Convolution(name, inputs, module, on=on) if _plain(module) else None
    if type(module) in (nn.Linear, NonDynamicallyQuantizableLinear):
        return Linear(name, inputs, module)
    return None


def of_call(node: Node, inputs: list[str]) -> Step | None:
    """F.linear of a value and parameters of the model."""
    if node.target is not F.linear:
        return None
    named = arguments(node, "input", "weight", "bias")
    x, weight, bias = (named.get(name) for name in ("input", "weight", "bias"))
    held = [p for p in (weight, bias) if p is not None]
    root = node.graph.owning_module
    if not isinstance(x, Node) or root is None or not all(isinstance(p, Node) and p.op == "get_attr" for p in held):
        return None
    try:
        projection = Projection(root, str(weight.target), None if bias is None else str(bias.target))  # type: ignore[union-attr]
    except (AttributeError, KeyError):
        return None
    return Linear(node.name, [x.name], cast(nn.Module, projection))


class Projection:
    """A linear layer whose weight is a parameter of another module: F.linear(x, weight, bias)."""

    training = False

    def __init__(self, root: nn.Module, weight: str, bias: str | None) -> None:
        self._places: dict[str, tuple[nn.Module, str] | None] = {}
        for name, target in (("weight", weight), ("bias", bias)):
            path, _, attribute = (target or "").rpartition(".")
            self._places[name] = None if target is None else (root.get_submodule(path), attribute)
        self.out_features = int(self._parameters["weight"].shape[0])  # type: ignore[union-attr]

    @property
    def _parameters(self) -> dict[str, nn.Parameter | None]:
        """As those of a module, and always the ones that the other module has now."""
        return {name: place and place[0]._parameters[place[1]] for name, place in self._places.items()}

    def named_parameters(self, recurse: bool = False) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self._parameters.items() if p is not None]


def both(sizes: Sequence[int], missing: int) -> tuple[int, int]:
    """Rows and columns; of a line there are columns alone."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (missing, sizes[0])


def _padding(conv: nn.Conv1d | nn.Conv2d) -> tuple[int, ...]:
    """Zeros on each side, also where they were asked for by a word."""
    if conv.padding == "valid":
        return (0,) * len(conv.kernel_size)
    if conv.padding == "same":
        return tuple(d * (k - 1) // 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True))
    assert isinstance(conv.padding, tuple)
    return conv.padding


def _plain(conv: nn.Conv1d | nn.Conv2d) -> bool:
    """Stride 1 or 2, the same on both axes, as dilation is; zeros around, fewer than the kernel reaches."""
    if conv.padding == "same" and any(d * (k - 1) % 2 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)):
        return False
    return (
        len(set(conv.stride)) == 1
        and conv.stride[0] in (1, 2)
        and len(set(conv.dilation)) == 1
        and all(p <= d * (k - 1) for p, d, k in zip(_padding(conv), conv.dilation, conv.kernel_size, strict=True))
        and conv.padding_mode == "zeros"
    )


class Convolution(Step):
    kind = "conv"
    learns = multiplies = True

    def plan(self, planner: Planner) -> None:
        conv = self.module
        assert isinstance(conv, nn.Conv1d | nn.Conv2d)
        like = planner.view(self.inputs[0])[1].like
        if conv.in_channels != like.channels:
            raise ValueError("channels do not match")
        geometry = Geometry(
            like.channels, conv.out_channels, like.height, like.width, both(conv.kernel_size, 1), conv.stride[0],
            both(_padding(conv), 0), conv.dilation[0], conv.groups,
        )  # fmt: skip
        plan_layer(planner, self, conv, geometry, self.inputs[0])


@dataclass
class Linear(Step):
    on: str = "rows"
    kind = "linear"
    learns = multiplies = True

    def plan(self, planner: Planner) -> None:
        linear = self.module
        assert isinstance(linear, nn.Linear | Projection)
        like = planner.view(self.inputs[0])[1].like
        geometry = Geometry(like.channels, linear.out_features, like.height, like.width)
        plan_layer(planner, self, linear, geometry, self.inputs[0])


def plan_layer(planner: Planner, step: Step, module: nn.Module, geometry: Geometry, read: str) -> None:
    """The convolution of the value `read`."""
    if geometry.out_height < 1 or geometry.out_width < 1:
        raise ValueError("input smaller than the kernel")
    name, view = planner.view(read)
    in_torch, made = module in planner.dense, None
    if in_torch or not geometry.reads_every_row:
        if not view.raw and (planner.uses[name] > 1 or len(view.terms) > 1 or in_torch):
            view = View([Term(planner.store(name))])
    else:
        made = planner.on_the_way(name, view)
    out = Buffer(geometry.outputs, geometry.out_height, geometry.out_width)
    op = Conv(module, geometry, view, out, in_torch, made)
    planner.put(step, op, out)
    if not in_torch:
        planner.maker[out] = op


@dataclass(eq=False)
class Conv(Op):
    """out = conv(source) (+ bias) (+ add); stores the source in `made` on the way, if asked."""

    module: nn.Module
    geometry: Geometry
    source: View
    out: Buffer
    dense: bool = False
    made: Buffer | None = None
    add: Buffer | None = None
    sums: Buffer | None = None

    def can_add(self, mine: View, other: View) -> bool:
        """Whether `mine` is its raw result, so that it can add `other` as it stores."""
        raw = mine.raw and other.raw and not self.dense
        return raw and self.out is mine.like and mine.like.size == other.like.size

    def traffic(self) -> Traffic:
        """A band is filled ahead of the rows that are stored, so a layer that keeps the shape may work in place."""
        source, g = self.source.buffers, self.geometry
        over = [(self.made, b) for b in reversed(source) if self.made]
        if self.add:
            over.append((self.out, self.add))
        if not self.dense and g.stride == 1 and (g.inputs, g.height, g.width) == self.out.size:
            over += [(self.out, b) for b in source]
        return Traffic(source + given(self.add), given(self.made, self.out, self.sums), over)

    def differentiate(self, adjoint: Adjoint) -> None:
        parts = adjoint.take(self.out)
        if not parts:
            return
        store = None
        if self.dense or self.add:
            if self.dense or (len(parts) == 1 and parts[0].norm is None):
                parts = [Part(adjoint.plain(parts, self.out) or self.out)]
            else:
                store = self.out.another()
            if self.add:
                adjoint.give(self.add, Part(store or parts[0].buffer))
        reading, sink = adjoint.into(self, alone=self.dense)
        adjoint.ops.append(ConvBack(self, parts, reading, sink, store))
        adjoint.handed_on(self, sink)

    def write(self, to: Writer, backwards: int) -> None:
        if self.dense:
            to.script.pause(partial(dense.forward, to, self))
            return
        memory = to.memory
        sink = Sink(out=memory.at(self.out), add=memory.at(self.add), stats=memory.at(self.sums))
        sink.past = memory.past(self.out, self.source.buffers)
        to.script.fill(sink, "bias", to.parameter(self.module, "bias"))
        weight, source = to.parameter(self.module, "weight"), memory.source(self.source, self.made)
        number, more = (PIXEL_CONV, ()) if memory.pixels else (CONV_FORWARD, (backwards,))
        at = to.script.add(number, 0, source, 0, weight, sink, THREADS, *more)
        to.layer(self.module, self.geometry, at, at + 2)


@dataclass(eq=False)
class ConvBack(Op):
    """Input, weight and bias gradient of a convolution."""

    conv: Conv
    parts: list[Part]
    source: View
    sink: GradientSink
    store: Buffer | None = None  # the gradient of the output, if someone else wants it too

    def traffic(self) -> Traffic:
        return self.sink.traffic(self.parts, self.store, self.store)

    def write(self, to: Writer, backwards: int) -> None:
        if self.conv.dense:
            to.script.pause(partial(dense.backward, to, self))
            return
        memory, module = to.memory, self.conv.module
        wanted = to.gradient(module, "weight")
        if to.gradient_of == "all" and wanted:
            to.script.pause(partial(dense.weight_gradient, to, self))
            wanted = 0
        at = to.script.add(
            CONV_BACKWARD, 0, memory.gradient(self.parts, self.store), memory.source(self.source), 0, 0, 0,
            to.parameter(module, "weight"), memory.sink(self.sink), wanted, to.gradient(module, "bias"), THREADS,
            backwards,
        )  # fmt: skip
        to.layer(module, self.conv.geometry, at, at + 3, at + 4, at + 5)
