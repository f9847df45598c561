"""What torch computes inside a region, on its own layouts: layers that stay dense, and whole weight gradients."""

from __future__ import annotations

from ctypes import addressof
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..build import SWEEP
from ..memory import Memory, Sink
from .base import Buffer
from .index import Geometry, layout_for

if TYPE_CHECKING:
    from ..lower import Run, Writer
    from .convolution import Conv, ConvBack


def forward(to: Writer, op: Conv, run: Run) -> None:
    """A layer that stays dense."""
    g, like = op.geometry, op.source.like
    plain = to.memory.move_out(to.memory.at(like), like, layout_for(g))
    bias = run.parameters[to.keys[op.module, "bias"]] if (op.module, "bias") in to.keys else None
    found = F.conv2d(plain, _weight(to, op, run), bias, g.stride, g.pad, g.dilation, g.groups)
    to.memory.move_in(found, op.out)


def backward(to: Writer, op: ConvBack, run: Run) -> None:
    """The gradients of such a layer."""
    conv, like, into = op.conv, op.source.like, op.sink.out
    layout = layout_for(conv.geometry)
    inputs = to.memory.move_out(to.memory.at(like), like, layout)
    gradient = to.memory.move_out(to.memory.at(op.parts[0].buffer), conv.out, layout)
    own = [_wanted(to, run, conv.module, name) for name in ("weight", "bias")]
    wanted = (into is not None, own[0] is not None, own[1] is not None)
    found, *gradients = torch_backward(conv.geometry, gradient, inputs, _weight(to, conv, run), wanted)
    for mine, theirs in zip(own, gradients, strict=True):
        if mine is not None:
            mine.copy_(theirs.view(mine.shape))
    if into is not None:
        to.memory.move_in(found, into)


def weight_gradient(to: Writer, op: ConvBack, run: Run) -> None:
    """The gradient at every position, pruned ones too: a growing method looks at it now and then."""
    out = _wanted(to, run, op.conv.module, "weight")
    if out is None:
        return
    g = op.conv.geometry
    inputs = _evaluated(to.memory, to.memory.source(op.source), op.source.like, layout_for(g))
    gradient = _evaluated(to.memory, to.memory.gradient(op.parts), op.conv.out, layout_for(g))
    found = torch_backward(g, gradient, inputs, _weight(to, op.conv, run), (False, True, False))[1]
    out.copy_(found.view(out.shape))


def _wanted(to: Writer, run: Run, module: nn.Module, name: str) -> Tensor | None:
    return run.gradients[to.keys[module, name]] if (module, name) in to.keys else None


def _weight(to: Writer, conv: Conv, run: Run) -> Tensor:
    position = to.keys.get((conv.module, "weight"))
    weight = conv.module.weight if position is None else run.parameters[position]
    assert isinstance(weight, Tensor)
    return weight.reshape(conv.geometry.weight)


def _evaluated(memory: Memory, source: Any, like: Buffer, layout: torch.memory_format) -> Tensor:
    """What a Source describes, in one of torch's own layouts."""
    space = torch.empty(memory.size(like) + 16)
    aligned = space.data_ptr() + 4 * ((-space.data_ptr() // 4) % 16)
    sink, threads = Sink(out=aligned), torch.get_num_threads()
    memory.lib.call(
        SWEEP, *memory.area(like), addressof(source), addressof(sink), 0, *[like.channels] * 2, threads, 0
    )  # fmt: skip
    return memory.move_out(aligned, like, layout)


def torch_backward(
    g: Geometry, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias, those that are wanted."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, [g.outputs], [g.stride] * 2, g.pad, [g.dilation] * 2, False, [0, 0], g.groups, wanted
    )
    return found
