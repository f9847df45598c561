"""What a backward program is made of: contributions to a gradient, what is done with it, and the operations."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Activation, Buffer, Conv, Enter, Leave, NormStep, RowNorm, Term, View


@dataclass(eq=False)
class Part:
    """One contribution to a gradient: a buffer, or a buffer that comes through a batch norm."""

    buffer: Buffer
    norm: NormStep | None = None


@dataclass(eq=False)
class GradientSink:
    """What happens to a gradient before it is stored: add, gate by an activation, sum for a batch norm."""

    out: Buffer | None = None
    add: Buffer | None = None
    gate: Term | None = None
    activation: Activation = ""
    sums: Buffer | None = None
    norm: NormStep | None = None


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


@dataclass(eq=False)
class NormBack:
    """From sums to the gradients of gamma and beta, and to what a Part through this norm needs."""

    norm: NormStep
    sums: Buffer


@dataclass(eq=False)
class RowNormBack:
    """Gradients of a layer norm's rows, gamma and beta; the sink adds what is already known of the rows'."""

    norm: RowNorm
    parts: list[Part]
    sink: GradientSink


BackOp = ConvBack | PassBack | NormBack | RowNormBack | Enter | Leave  # both edges carry gradients here
