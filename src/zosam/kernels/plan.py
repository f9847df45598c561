"""What programs are made of: buffers, views of them, and operations that read views and store buffers.

A forward program is a list of `Op`, a backward program a list of `BackOp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from .index import Geometry

Activation = Literal["", "relu", "gelu", "relu6", "hardswish", "silu"]


@dataclass(eq=False)
class Buffer:
    """A stored tensor in the blocked layout."""

    channels: int
    height: int
    width: int
    sums: bool = False  # not an activation but the statistics of one


@dataclass(eq=False)
class Term:
    """A stored buffer, normalised or as it is."""

    buffer: Buffer
    norm: BatchNorm | None = None


@dataclass(eq=False)
class View:
    """relu(sum of terms), another activation of one term, or the bare sum, evaluated by whoever reads it."""

    terms: list[Term]
    activation: Activation = ""
    made: Buffer | None = None

    @property
    def raw(self) -> bool:
        return len(self.terms) == 1 and self.terms[0].norm is None and not self.activation

    @property
    def like(self) -> Buffer:
        return self.terms[0].buffer


@dataclass(eq=False)
class Enter:
    """Region input -> buffer."""

    position: int
    out: Buffer


@dataclass(eq=False)
class Leave:
    """Buffer -> region output."""

    source: Buffer
    position: int


@dataclass(eq=False)
class Conv:
    """out = conv(source) (+ bias) (+ add); stores the source in `made` on the way, if asked."""

    module: nn.Module
    geometry: Geometry
    source: View
    out: Buffer
    dense: bool = False
    made: Buffer | None = None
    add: Buffer | None = None
    sums: Buffer | None = None


@dataclass(eq=False)
class Pass:
    """One element-wise pass: store the view, sum it for a batch norm, or average it over its pixels."""

    source: View
    out: Buffer | None = None
    sums: Buffer | None = None
    position: int | None = None  # the output that takes the averages
    noise: Buffer | None = None  # multiplied with the view


@dataclass(eq=False)
class Noise:
    """What dropout multiplies with, drawn by torch: `draw` drops entries of ones."""

    draw: Callable[[Tensor], Tensor]
    out: Buffer


@dataclass(frozen=True)
class Frame:
    """The windows of a pooling layer."""

    largest: bool  # else the mean
    kernel: tuple[int, int]
    stride: int
    pad: tuple[int, int] = (0, 0)
    padded: bool = True  # whether zeros around count in a mean


@dataclass(eq=False)
class Window:
    """The largest or the mean of every window of the source; stores the source in `made` on the way, if asked."""

    frame: Frame
    source: View
    out: Buffer
    made: Buffer | None = None


@dataclass(eq=False)
class Cat:
    """Channels of several views, one after the other."""

    sources: list[View]
    out: Buffer


@dataclass(eq=False)
class BatchNorm:
    """Batch norm of a buffer: from its sums to a scale and a shift per channel."""

    module: nn.BatchNorm1d | nn.BatchNorm2d
    buffer: Buffer
    sums: Buffer | None  # None if it uses its running statistics


@dataclass(eq=False)
class LayerNorm:
    """Layer norm: every row of the source by its own mean and spread."""

    module: nn.LayerNorm
    source: Buffer
    out: Buffer


Op = Enter | Leave | Conv | Pass | Noise | Window | Cat | BatchNorm | LayerNorm


class Selection(nn.Conv2d):
    """A fixed 1 x 1 convolution that takes every n-th pixel and puts channels of zeros around: a bare shortcut."""

    def __init__(self, inputs: int, stride: int, extra: tuple[int, int]) -> None:
        super().__init__(inputs, inputs + sum(extra), 1, stride, bias=False)
        self.weight.requires_grad_(False).zero_()
        self.weight[range(extra[0], extra[0] + inputs), range(inputs)] = 1.0
        self.active = self.weight != 0


@dataclass
class Forward:
    """The forward program of a region for one input size."""

    ops: list[Op] = field(default_factory=list)
    keepdim: dict[int, bool] = field(default_factory=dict)


# --- backward: contributions to a gradient, what is done with it, and the operations ----------------------------------


@dataclass(eq=False)
class Part:
    """One contribution to a gradient: a buffer, or a buffer that comes through a batch norm."""

    buffer: Buffer
    norm: BatchNorm | None = None


@dataclass(eq=False)
class GradientSink:
    """What happens to a gradient before it is stored: add, gate by an activation, sum for a batch norm."""

    out: Buffer | None = None
    add: Buffer | None = None
    gate: Term | None = None
    activation: Activation = ""
    sums: Buffer | None = None
    norm: BatchNorm | None = None


@dataclass(eq=False)
class ConvBack:
    """Input, weight and bias gradient of a convolution."""

    conv: Conv
    parts: list[Part]
    source: View
    sink: GradientSink
    store: Buffer | None = None  # the gradient of the output, if someone else wants it too


@dataclass(eq=False)
class PassBack:
    """An element-wise pass over gradients; with a position, the spread of that output's pooled gradient."""

    parts: list[Part]
    sink: GradientSink
    like: Buffer
    position: int | None = None
    noise: Buffer | None = None


@dataclass(eq=False)
class WindowBack:
    """Input gradient of a pooling layer."""

    window: Window
    parts: list[Part]
    source: View
    sink: GradientSink


@dataclass(eq=False)
class CatBack:
    """The gradient of one of several views whose channels were put together: that from channel `first` on."""

    whole: Buffer
    first: int
    like: Buffer
    sink: GradientSink


@dataclass(eq=False)
class BatchNormBack:
    """From sums to the gradients of gamma and beta, and to what a Part through this norm needs."""

    norm: BatchNorm
    sums: Buffer


@dataclass(eq=False)
class LayerNormBack:
    """Gradients of a layer norm's rows, gamma and beta; the sink adds what is already known of the rows'."""

    norm: LayerNorm
    parts: list[Part]
    sink: GradientSink


BackOp = (  # both edges carry gradients here
    ConvBack | PassBack | WindowBack | CatBack | BatchNormBack | LayerNormBack | Enter | Leave
)
