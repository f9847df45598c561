"""The calls of a forward program, in order."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import library
from .bound import Memory, Run, address
from .index import Geometry
from .library import CONV_FORWARD, MOVE, NORM_FORWARD, ROW_NORM
from .plan import Buffer, Conv, Enter, Forward, Leave, NormStep, Pass, RowNorm

Call = Callable[[Run], None]


def calls(memory: Memory, forward: Forward) -> list[Call]:
    """One callable per operation, which puts its call on the list of a run.

    Every other one walks the batch from its end, where the cache is warm.
    """
    made: dict[type, Callable[..., Call]] = {
        Enter: _enter,
        Leave: _leave,
        NormStep: _norm,
        RowNorm: _row_norm,
        Pass: partial(_pass, forward=forward),
        Conv: _conv,
    }
    return [made[type(op)](memory, op, backwards=turn % 2) for turn, op in enumerate(forward.ops)]


def move_in(memory: Memory, plain: Tensor, buffer: Buffer, run: Run) -> None:
    """[N, C, H, W] in any strides -> blocked."""
    run.calls.add(
        MOVE, plain.data_ptr(), memory.at(buffer), memory.images, buffer.channels, buffer.height, buffer.width,
        memory.layers.plane(buffer.height, buffer.width), *plain.stride(), 1, run.threads,
    )  # fmt: skip


def move_out(memory: Memory, address: int, buffer: Buffer, plain: Tensor, run: Run) -> None:
    """Blocked -> [N, C, H, W] in any strides."""
    run.calls.add(
        MOVE, address, plain.data_ptr(), memory.images, buffer.channels, buffer.height, buffer.width,
        memory.layers.plane(buffer.height, buffer.width), *plain.stride(), 0, run.threads,
    )  # fmt: skip


def empty_plain(memory: Memory, buffer: Buffer, layout: torch.memory_format = torch.channels_last) -> Tensor:
    """Room for a buffer in one of torch's own layouts."""
    return torch.empty((memory.images, buffer.channels, buffer.height, buffer.width), memory_format=layout)


def layout_for(g: Geometry) -> torch.memory_format:
    """The layout for torch's own convolution: channels_last, save for odd channel counts.

    There the weight gradient of torch 2.13 (oneDNN, 1 x 1, stride 2, 6 -> 10 channels) writes past its memory.
    """
    return torch.channels_last if g.inputs % 8 == 0 == g.outputs % 8 else torch.contiguous_format


def _enter(memory: Memory, op: Enter, **_: Any) -> Call:
    def call(run: Run) -> None:
        move_in(memory, run.inputs[op.position], op.out, run)

    return call


def _leave(memory: Memory, op: Leave, **_: Any) -> Call:
    def call(run: Run) -> None:
        out = empty_plain(memory, op.source)
        move_out(memory, memory.at(op.source), op.source, out, run)
        run.outputs[op.position] = out

    return call


def _conv(memory: Memory, op: Conv, backwards: int) -> Call:
    if op.dense:
        return _dense(memory, op)
    source = memory.source(op.source, op.made)
    sink = library.Sink(out=memory.at(op.out), add=memory.at(op.add), stats=memory.at(op.sums))
    module, indexed = op.module, memory.layers.indexed(op.module, op.geometry)

    def call(run: Run) -> None:
        weight = run.weight(module)
        sink.bias = address(run.parameter(module, "bias"))
        index = indexed.index(weight)
        index.shape.images = memory.images
        run.calls.add(
            CONV_FORWARD, addressof(index.shape), addressof(source), addressof(index.forward), weight.data_ptr(),
            addressof(sink), run.threads, backwards,
        )  # fmt: skip

    return call


def _pass(memory: Memory, op: Pass, backwards: int, forward: Forward) -> Call:
    source = memory.source(op.source)
    sink = library.Sink(out=memory.at(op.out), stats=memory.at(op.sums))
    like = op.source.like

    def call(run: Run) -> None:
        pooled = None
        if op.position is not None:
            shape = (memory.images, like.channels, 1, 1)
            pooled = torch.empty(shape if forward.keepdim[op.position] else shape[:2])
            run.outputs[op.position] = pooled
        memory.sweep(run, like, source, sink, pooled, backwards)

    return call


def row_norm(memory: Memory, op: RowNorm, **more: Any) -> library.Structure:
    """The C view of a layer norm, without its parameters."""
    like = op.source
    area, plane = like.height * like.width, memory.layers.plane(like.height, like.width)
    struct: library.Structure = library.RowNorm(
        images=memory.images, channels=like.channels, area=area, plane=plane, eps=op.module.eps, x=memory.at(like),
        **more,
    )  # fmt: skip
    return struct


def _row_norm(memory: Memory, op: RowNorm, **_: Any) -> Call:
    struct = row_norm(memory, op, out=memory.at(op.out))

    def call(run: Run) -> None:
        struct.gamma, struct.beta = (address(run.parameter(op.module, name)) for name in ("weight", "bias"))
        run.calls.add(ROW_NORM, addressof(struct), run.threads)

    return call


def _norm(memory: Memory, op: NormStep, **_: Any) -> Call:
    struct, module, sums = memory.norms[op], op.module, memory.at(op.sums)

    def call(run: Run) -> None:
        struct.gamma = address(run.parameter(module, "weight"))
        struct.beta = address(run.parameter(module, "bias"))
        buffers = module._buffers  # an attribute of a module is found the long way round
        mean = buffers["running_mean"]
        struct.running_mean, struct.running_var = address(mean), address(buffers["running_var"])
        struct.eps = module.eps
        struct.batch_statistics = int(module.training or mean is None)
        struct.momentum = tracking(module, run)
        run.calls.add(NORM_FORWARD, addressof(struct), sums)

    return call


def tracking(module: nn.BatchNorm2d, run: Run) -> float:
    """How far this pass moves the running statistics, as nn.BatchNorm2d decides it; -1 for not at all."""
    buffers = module._buffers
    if not module.training or not module.track_running_stats or buffers["running_mean"] is None:
        return -1.0
    count = buffers["num_batches_tracked"]
    if count is not None:
        run.counted.append(count)
        if module.momentum is None:
            return 1.0 / (float(count) + sum(c is count for c in run.counted))
    return 0.0 if module.momentum is None else float(module.momentum)


def _dense(memory: Memory, op: Conv) -> Call:
    def call(run: Run) -> None:
        plain = empty_plain(memory, op.source.like, layout_for(op.geometry))
        move_out(memory, memory.at(op.source.like), op.source.like, plain, run)
        run.calls.make()
        weight, bias = run.weight(op.module), run.parameter(op.module, "bias")
        g = op.geometry
        weight = weight.reshape(g.outputs, g.inputs, g.kernel, g.kernel)
        out = nn.functional.conv2d(plain, weight, bias, g.stride, g.pad)
        move_in(memory, out, op.out, run)
        run.calls.make()

    return call
