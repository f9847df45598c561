"""The calls of a backward program, in order."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from . import library
from .bound import Memory, Run, address
from .library import CONV_BACKWARD, NORM_BACKWARD, ROW_NORM
from .plan import Buffer, Conv, Enter, Leave
from .plan_backward import BackOp, ConvBack, NormBack, PassBack, RowNormBack
from .run_forward import Call, empty_plain, layout_for, move_in, move_out, row_norm


def calls(memory: Memory, ops: list[BackOp]) -> list[Call]:
    """One callable per operation, which puts its call on the list of a run.

    Every other one walks the batch from its end, where the cache is warm.
    """
    made: dict[type, Callable[..., Call]] = {
        Enter: _enter,
        Leave: _leave,
        NormBack: _norm,
        RowNormBack: _row_norm,
        PassBack: _pass,
        ConvBack: _conv,
    }
    return [made[type(op)](memory, op, backwards=turn % 2) for turn, op in enumerate(ops)]


def _enter(memory: Memory, op: Enter, **_: Any) -> Call:
    def call(run: Run) -> None:
        gradient = run.output_gradients[op.position]
        assert gradient is not None
        move_in(memory, gradient, op.out, run)

    return call


def _leave(memory: Memory, op: Leave, **_: Any) -> Call:
    def call(run: Run) -> None:
        plain = empty_plain(memory, op.source)
        move_out(memory, memory.at(op.source), op.source, plain, run)
        run.input_gradients[op.position] = plain

    return call


def _norm(memory: Memory, op: NormBack, **_: Any) -> Call:
    struct, sums, module = memory.norms[op.norm], memory.at(op.sums), op.norm.module

    def call(run: Run) -> None:
        wanted = (address(run.gradients.get((module, name))) for name in ("weight", "bias"))
        run.calls.add(NORM_BACKWARD, addressof(struct), sums, *wanted)

    return call


def _row_norm(memory: Memory, op: RowNormBack, **_: Any) -> Call:
    module, gradient = op.norm.module, memory.gradient(op.parts)
    struct = row_norm(memory, op.norm, out=memory.at(op.sink.out), add=memory.at(op.sink.add))
    struct.gradient = addressof(gradient)

    def call(run: Run, gradient: library.Structure = gradient) -> None:  # which it keeps alive
        struct.gamma = address(run.parameter(module, "weight"))
        struct.gamma_gradient, struct.beta_gradient = (
            address(run.gradients.get((module, name))) for name in ("weight", "bias")
        )
        run.calls.add(ROW_NORM, addressof(struct), run.threads)

    return call


def _pass(memory: Memory, op: PassBack, backwards: int) -> Call:
    source = memory.gradient(op.parts) if op.parts else None
    sink = memory.sink(op.sink)

    def call(run: Run) -> None:
        pooled: Tensor | None = None
        if op.position is not None:
            pooled = run.output_gradients[op.position]
            assert pooled is not None
            pooled = run.output_gradients[op.position] = pooled.contiguous()
        memory.sweep(run, op.like, source, sink, pooled, backwards)

    return call


def _conv(memory: Memory, op: ConvBack, backwards: int) -> Call:
    if op.conv.dense:
        return _dense(memory, op)
    gradient = memory.gradient(op.parts, op.store)
    source = memory.source(op.source)
    sink = memory.sink(op.sink)
    module, indexed = op.conv.module, memory.layers.indexed(op.conv.module, op.conv.geometry)

    def call(run: Run) -> None:
        weight = run.weight(module)
        wanted = run.gradients.get((module, "weight"))
        if wanted is not None and run.dense_gradient:
            _dense_weight_gradient(memory, op, run, wanted)
            wanted = None
        index = indexed.index(weight)
        index.shape.images = memory.images
        run.calls.add(
            CONV_BACKWARD, addressof(index.shape), addressof(gradient), addressof(source), addressof(index.forward),
            addressof(index.transposed), addressof(index.counts), weight.data_ptr(), addressof(sink), address(wanted),
            address(run.gradients.get((module, "bias"))), run.threads, backwards,
        )  # fmt: skip

    return call


def _plain(memory: Memory, struct: library.Structure, like: Buffer, layout: torch.memory_format, run: Run) -> Tensor:
    """What a Source describes, in one of torch's own layouts."""
    room = torch.empty(memory.size(like) + 16)
    aligned = room.data_ptr() + 4 * ((-room.data_ptr() // 4) % 16)
    sink = library.Sink(out=aligned)
    memory.sweep(run, like, struct, sink)
    plain = empty_plain(memory, like, layout)
    move_out(memory, aligned, like, plain, run)
    run.calls.make()
    return plain


def _dense_weight_gradient(memory: Memory, op: ConvBack, run: Run, out: Tensor) -> None:
    """The gradient at every position, pruned ones too, by torch: a growing method looks at it now and then."""
    layout = layout_for(op.conv.geometry)
    inputs = _plain(memory, memory.source(op.source), op.source.like, layout, run)
    gradient = _plain(memory, memory.gradient(op.parts), op.conv.out, layout, run)
    out.copy_(_torch_backward(op.conv, run, gradient, inputs, (False, True, False))[1].view(out.shape))


def _torch_backward(
    conv: Conv, run: Run, gradient: Tensor, inputs: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias, those that are wanted."""
    g = conv.geometry
    weight = run.weight(conv.module).reshape(g.outputs, g.inputs, g.kernel, g.kernel)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, [g.outputs], [g.stride] * 2, [g.pad] * 2, [1, 1], False, [0, 0], 1, wanted
    )
    return found


def _dense(memory: Memory, op: ConvBack) -> Call:
    def call(run: Run) -> None:
        like, out = op.source.like, op.conv.out
        layout = layout_for(op.conv.geometry)
        inputs, gradient = empty_plain(memory, like, layout), empty_plain(memory, out, layout)
        move_out(memory, memory.at(like), like, inputs, run)
        move_out(memory, memory.at(op.parts[0].buffer), out, gradient, run)
        run.calls.make()
        into = op.sink.out
        own = [run.gradients.get((op.conv.module, name)) for name in ("weight", "bias")]
        wanted = (into is not None, own[0] is not None, own[1] is not None)
        found, *gradients = _torch_backward(op.conv, run, gradient, inputs, wanted)
        for mine, theirs in zip(own, gradients, strict=True):
            if mine is not None:
                mine.copy_(theirs.view(mine.shape))
        if into is not None:
            move_in(memory, found, into, run)
            run.calls.make()

    return call
