"""Pooling: the largest or the mean of every window, and the mean of all pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import Node
from torch.nn import functional as F

from ..build import PIXEL_WINDOW, WINDOW, structure
from ..lower import THREADS
from .base import Buffer, GradientSink, Op, Part, Step, Traffic, View, arguments, given
from .convolution import both
from .elementwise import Pass
from .index import pixel_row

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint, Planner

WINDOWS: dict[Any, tuple[bool, int]] = {  # whether they take the largest, and over how many axes
    nn.MaxPool1d: (True, 1), nn.MaxPool2d: (True, 2), nn.AvgPool1d: (False, 1), nn.AvgPool2d: (False, 2),
    F.max_pool1d: (True, 1), F.max_pool2d: (True, 2), F.avg_pool1d: (False, 1), F.avg_pool2d: (False, 2),
}  # fmt: skip
MEANS: dict[Any, int] = {  # over how many axes, if all of them is asked for
    nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, F.adaptive_avg_pool1d: 1, F.adaptive_avg_pool2d: 2,
}  # fmt: skip
ON = ("", "line", "image")  # by the number of axes
WindowCall = structure(
    "Window",
    integers="images channels height width high wide stride pad side out_height out_width in_plane out_plane largest "
    "padded",
    pointers="source gradient out sink",
)


def of_module(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    if type(module) in WINDOWS:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")
        asked = {key: getattr(module, key) for key in names if hasattr(module, key)}
        return None if getattr(module, "return_indices", False) else _windows(type(module), name, inputs, asked)
    if type(module) in MEANS:
        axes = MEANS[type(module)]
        return Mean(name, inputs, on=ON[axes]) if module.output_size in (1, (1,) * axes) else None
    return None


def of_call(node: Node, inputs: list[str]) -> Step | None:
    if node.target in WINDOWS:
        return _window_call(node, inputs)
    if node.target in MEANS:
        axes = MEANS[node.target]
        return Mean(node.name, inputs, on=ON[axes]) if node.args[1:] in ((1,), ((1,) * axes,)) else None
    return _mean(node, inputs) if node.target in (torch.mean, "mean") else None


def _mean(node: Node, inputs: list[str]) -> Step | None:
    """x.mean((2, 3))."""
    asked = arguments(node, "input", "dim", "keepdim")
    asked.pop("input", None)
    dim = asked.pop("dim", None)
    keepdim = asked.pop("keepdim", False)
    if asked or not isinstance(dim, (tuple, list)) or not isinstance(keepdim, bool):
        return None
    if not all(isinstance(d, int) for d in dim) or sorted(d % 4 for d in dim if isinstance(d, int)) != [2, 3]:
        return None
    return Mean(node.name, inputs, on="image", keepdim=keepdim)


def _window_call(node: Node, inputs: list[str]) -> Step | None:
    """A pooling function; as a module it would say the same."""
    largest, axes = WINDOWS[node.target]
    names = ("input", "kernel_size", "stride", "padding", *(("dilation",) if largest else ()), "ceil_mode")
    names = names if largest else (*names, "count_include_pad", *(("divisor_override",) if axes == 2 else ()))
    asked = arguments(node, *names)
    asked.pop("input", None)
    if len(inputs) != 1 or len(node.args) > len(names) or asked.pop("return_indices", False):
        return None
    return _windows(node.target, node.name, inputs, asked)


def _windows(kind: Any, name: str, inputs: list[str], asked: dict[str, Any]) -> Step | None:
    largest, axes = WINDOWS[kind]
    frame = frame_of(largest, axes, **asked)
    return None if frame is None else Windows(name, inputs, on=ON[axes], frame=frame)


@dataclass(frozen=True)
class Frame:
    """The windows of a pooling layer."""

    largest: bool  # else the mean
    kernel: tuple[int, int]
    stride: int
    pad: tuple[int, int] = (0, 0)
    padded: bool = True  # whether zeros around count in a mean


def frame_of(
    largest: bool, axes: int, kernel_size: Any = None, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Frame | None:  # fmt: skip
    """The windows, if they lie equally far apart on both axes and end inside the picture."""

    def several(value: Any) -> tuple[int, ...] | None:
        value = (value,) * axes if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
        return value if len(value) == axes and all(isinstance(v, int) for v in value) else None

    kernel, pads = several(kernel_size), several(padding)
    steps = kernel if stride is None or stride == [] else several(stride)
    if kernel is None or pads is None or steps is None or several(dilation) != (1,) * axes or len(set(steps)) > 1:
        return None
    if ceil_mode or divisor_override is not None or any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
        return None
    return Frame(largest, both(kernel, 1), steps[0], both(pads, 0), count_include_pad)


@dataclass
class Mean(Step):
    """The mean of all pixels."""

    keepdim: bool = True
    kind = "pool"
    ends = True

    def plan(self, planner: Planner) -> None:
        name, view = planner.view(self.inputs[0])
        made = planner.on_the_way(name, view)
        if self.name not in planner.region.outputs:
            raise ValueError("a pooled value must leave the region")
        position = planner.region.outputs.index(self.name)
        planner.program.pooled.add(position)
        planner.add(Pass(view, out=made, position=position, keepdim=self.keepdim))


@dataclass
class Windows(Step):
    """The largest or the mean of every window."""

    frame: Frame | None = None
    kind = "window"

    def plan(self, planner: Planner) -> None:
        name, view = planner.view(self.inputs[0])
        like, frame = view.like, self.frame
        assert frame is not None
        sizes = zip((like.height, like.width), frame.kernel, frame.pad, strict=True)
        height, width = ((size + 2 * pad - kernel) // frame.stride + 1 for size, kernel, pad in sizes)
        if height < 1 or width < 1:
            raise ValueError("input smaller than the window")
        out = Buffer(like.channels, height, width)
        planner.put(self, Window(frame, view, out, planner.on_the_way(name, view)), out)


@dataclass(eq=False)
class Window(Op):
    """The largest or the mean of every window of the source; stores the source in `made` on the way, if asked."""

    frame: Frame
    source: View
    out: Buffer
    made: Buffer | None = None

    def traffic(self) -> Traffic:
        source = self.source.buffers
        return Traffic(source, given(self.made, self.out), [(self.made, b) for b in reversed(source) if self.made])

    def differentiate(self, adjoint: Adjoint) -> None:
        parts = adjoint.take(self.out)
        if parts:
            reading, sink = adjoint.into(self)
            if sink.out is not None:
                adjoint.ops.append(WindowBack(self, parts, reading, sink))
                adjoint.handed_on(self, sink)

    def call(self, to: Writer) -> Any:
        """The C view."""
        frame, out = self.frame, self.out
        images, channels, height, width, plane = to.memory.extent(self.source.like)
        return WindowCall(
            images, channels, height, width, *frame.kernel, frame.stride, *frame.pad, out.height, out.width,
            plane, to.memory.plane(out), int(frame.largest), int(frame.padded),
        )  # fmt: skip

    def write(self, to: Writer, backwards: int) -> None:
        call = self.call(to)
        call.out = to.memory.at(self.out)
        to.script.point(call, source=to.memory.source(self.source, self.made))
        if to.memory.pixels:
            rows = (pixel_row(buffer.width, to.memory.lanes) for buffer in (self.source.like, self.out))
            to.script.add(PIXEL_WINDOW, call, *rows)
        else:
            to.script.add(WINDOW, call, THREADS)


@dataclass(eq=False)
class WindowBack(Op):
    """Input gradient of a pooling layer."""

    window: Window
    parts: list[Part]
    source: View
    sink: GradientSink

    def traffic(self) -> Traffic:
        return self.sink.traffic(self.parts)

    def write(self, to: Writer, backwards: int) -> None:
        memory, call = to.memory, self.window.call(to)
        gradient, sink = memory.gradient(self.parts), memory.sink(self.sink)
        to.script.point(call, source=memory.source(self.source), gradient=gradient, sink=sink)
        to.script.add(WINDOW, call, THREADS)
