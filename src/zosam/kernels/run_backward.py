"""The calls of a backward program, in order."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from . import library
from .adjoint import BackOp, BiasBack, ConvBack, EnterBack, LeaveBack, NormBack, PassBack
from .bound import VECTORS, Memory, Run
from .plan import Buffer, Conv
from .run_forward import Call, check, empty_plain, layout_for, move_in, move_out


def calls(memory: Memory, ops: list[BackOp]) -> list[Call]:
    """One callable per operation; every other one walks the batch from its end, where the cache is warm."""
    made: list[Call] = []
    for turn, op in enumerate(ops):
        if isinstance(op, EnterBack):
            made.append(_enter(memory, op))
        elif isinstance(op, LeaveBack):
            made.append(_leave(memory, op))
        elif isinstance(op, NormBack):
            made.append(_norm(memory, op))
        elif isinstance(op, BiasBack):
            made.append(_bias(memory, op))
        elif isinstance(op, PassBack):
            made.append(_pass(memory, op, turn % 2))
        elif op.conv.dense:
            made.append(_dense(memory, op))
        else:
            made.append(_conv(memory, op, turn % 2))
    return made


def _enter(memory: Memory, op: EnterBack) -> Call:
    def call(run: Run) -> None:
        gradient = run.output_gradients[op.position]
        assert gradient is not None
        move_in(memory, gradient, op.out, run.threads)

    return call


def _leave(memory: Memory, op: LeaveBack) -> Call:
    def call(run: Run) -> None:
        if op.source is not None:
            plain = empty_plain(memory, op.source)
            move_out(memory, memory.at(op.source), op.source, plain, run.threads)
            run.input_gradients[op.position] = plain

    return call


def _norm(memory: Memory, op: NormBack) -> Call:
    struct, sums, module = memory.norms[op.norm], memory.at(op.sums), op.norm.module
    rows = {name: memory.vectors[op.norm][VECTORS.index(name)] for name in ("gamma_gradient", "beta_gradient")}

    def call(run: Run) -> None:
        memory.lib.c.zk_norm_backward(byref(struct), sums)
        for name, row in (("weight", rows["gamma_gradient"]), ("bias", rows["beta_gradient"])):
            if (module, name) in run.gradients:
                run.gradients[module, name].copy_(row)

    return call


def _pass(memory: Memory, op: PassBack, backwards: int) -> Call:
    source = memory.gradient(op.parts) if op.parts else None
    sink = memory.sink(op.sink)
    area, plane = op.like.height * op.like.width, memory.layers.plane(op.like.height, op.like.width)

    def call(run: Run) -> None:
        pooled: Tensor | None = None
        if op.position is not None:
            pooled = run.output_gradients[op.position]
            assert pooled is not None
            pooled = pooled.contiguous()
        memory.lib.c.zk_pass(
            memory.images, op.like.channels, area, plane, None if source is None else byref(source), byref(sink),
            None if pooled is None else pooled.data_ptr(), run.threads, backwards,
        )  # fmt: skip

    return call


def _bias(memory: Memory, op: BiasBack) -> Call:
    out = op.conv.out
    source, center = memory.gradient(op.parts), torch.zeros(out.channels)
    # Sums against a second tensor are not shifted, and only the first of the two sums is wanted here.
    sink = library.Sink(stats=memory.at(op.sums), with_=memory.at(op.parts[0].buffer), center=center.data_ptr())
    area, plane = out.height * out.width, memory.layers.plane(out.height, out.width)

    def call(run: Run, center: Tensor = center) -> None:  # which it keeps alive
        wanted = run.gradients.get((op.conv.module, "bias"))
        if wanted is not None:
            memory.lib.c.zk_pass(
                memory.images, out.channels, area, plane, byref(source), byref(sink), None, run.threads, 0
            )
            wanted.copy_(memory.sums(op.sums)[:, :, 1].double().sum((0, 2)))

    return call


def _conv(memory: Memory, op: ConvBack, backwards: int) -> Call:
    gradient = memory.gradient(op.parts, op.store)
    source, joint = memory.source(op.source)
    sink = memory.sink(op.sink)
    module, geometry = op.conv.module, op.conv.geometry
    function = memory.lib.c.zk_conv_backward

    def call(run: Run) -> None:
        memory.join(op.source, joint)
        weight = run.weight(module)
        wanted = run.gradients.get((module, "weight"))
        if wanted is not None and run.dense_gradient:
            _dense_weight_gradient(memory, op, run, wanted)
            wanted = None
        index = memory.layers.index(module, geometry, weight)
        index.shape.images = memory.images
        check(
            function(
                byref(index.shape), byref(gradient), byref(source), byref(index.forward), index.transposed,
                index.counts, weight.data_ptr(), byref(sink), None if wanted is None else wanted.data_ptr(),
                run.threads, backwards,
            )
        )  # fmt: skip

    return call


def _plain(memory: Memory, struct: library.Structure, like: Buffer, layout: torch.memory_format, run: Run) -> Tensor:
    """What a Source describes, in one of torch's own layouts."""
    room = torch.empty(memory.size(like) + 16)
    address = room.data_ptr() + 4 * ((-room.data_ptr() // 4) % 16)
    sink = library.Sink(out=address)
    area, plane = like.height * like.width, memory.layers.plane(like.height, like.width)
    memory.lib.c.zk_pass(memory.images, like.channels, area, plane, byref(struct), byref(sink), None, run.threads, 0)
    plain = empty_plain(memory, like, layout)
    move_out(memory, address, like, plain, run.threads)
    return plain


def _dense_weight_gradient(memory: Memory, op: ConvBack, run: Run, out: Tensor) -> None:
    """The gradient at every position, pruned ones too, by torch: a growing method looks at it now and then."""
    source, joint = memory.source(op.source)
    memory.join(op.source, joint)
    layout = layout_for(op.conv.geometry)
    inputs = _plain(memory, source, op.source.like, layout, run)
    gradient = _plain(memory, memory.gradient(op.parts), op.conv.out, layout, run)
    out.copy_(_torch_backward(op.conv, run, gradient, inputs, (False, True))[1].view(out.shape))


def _torch_backward(
    conv: Conv, run: Run, gradient: Tensor, inputs: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    g = conv.geometry
    weight = run.weight(conv.module).reshape(g.outputs, g.inputs, g.kernel, g.kernel)
    into, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, None, [g.stride] * 2, [g.pad] * 2, [1, 1], False, [0, 0], 1, [*wanted, False]
    )
    return into, of_weight


def _dense(memory: Memory, op: ConvBack) -> Call:
    def call(run: Run) -> None:
        like, out = op.source.like, op.conv.out
        layout = layout_for(op.conv.geometry)
        inputs, gradient = empty_plain(memory, like, layout), empty_plain(memory, out, layout)
        move_out(memory, memory.at(like), like, inputs, run.threads)
        move_out(memory, memory.at(op.parts[0].buffer), out, gradient, run.threads)
        wanted = run.gradients.get((op.conv.module, "weight"))
        both = (op.sink.out is not None, wanted is not None)
        into, of_weight = _torch_backward(op.conv, run, gradient, inputs, both)
        if wanted is not None:
            wanted.copy_(of_weight.view(wanted.shape))
        if op.sink.out is not None:
            move_in(memory, into, op.sink.out, run.threads)

    return call
