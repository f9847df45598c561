"""Where buffers lie: one arena per program, with room shared by buffers that never live at the same time."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import library
from .index import pixel_plane, plane
from .layers import Layers
from .library import Library
from .plan import (
    Activation,
    BackOp,
    BatchNorm,
    BatchNormBack,
    Buffer,
    Cat,
    CatBack,
    ConvBack,
    Enter,
    Forward,
    GradientSink,
    LayerNorm,
    Leave,
    Noise,
    Op,
    Part,
    Pass,
    View,
    Window,
    WindowBack,
)  # fmt: skip

WORTH_LARGE_PAGES = 16 << 20  # bytes
VECTORS = ("mean", "rstd", "scale", "shift", "gz", "gb")
ACTIVATIONS: tuple[Activation, ...] = ("", "relu", "gelu", "relu6", "hardswish", "silu")  # by their number in C


@dataclass
class Traffic:
    """What an operation reads and writes, and which write may take the place of which read."""

    reads: list[Buffer] = field(default_factory=list)
    writes: list[Buffer] = field(default_factory=list)
    over: list[tuple[Buffer, Buffer]] = field(default_factory=list)


def forward_traffic(op: Op) -> Traffic:
    """A band is filled ahead of the rows that are stored, so a layer that keeps the shape may work in place."""
    if isinstance(op, Enter | Leave):
        return edge_traffic(op)
    if isinstance(op, BatchNorm):
        return Traffic(reads=_given(op.sums))
    if isinstance(op, LayerNorm):
        return Traffic([op.source], [op.out], [(op.out, op.source)])
    if isinstance(op, Noise):
        return Traffic(writes=[op.out])
    if isinstance(op, Cat):
        return Traffic([term.buffer for view in op.sources for term in view.terms], [op.out])
    source = [term.buffer for term in op.source.terms]
    if isinstance(op, Pass):
        return Traffic(source + _given(op.noise), _given(op.out, op.sums), [(op.out, b) for b in source if op.out])
    over = [(op.made, b) for b in reversed(source) if op.made]
    if isinstance(op, Window):
        return Traffic(source, _given(op.made, op.out), over)
    if op.add:
        over.append((op.out, op.add))
    g = op.geometry
    if not op.dense and g.stride == 1 and (g.inputs, g.height, g.width) == (g.outputs, g.out_height, g.out_width):
        over += [(op.out, b) for b in source]
    return Traffic(source + _given(op.add), _given(op.made, op.out, op.sums), over)


def backward_traffic(op: BackOp) -> Traffic:
    """The same for gradients; forward buffers never move and are left out."""
    if isinstance(op, Enter | Leave):
        return edge_traffic(op)
    if isinstance(op, BatchNormBack):
        return Traffic(reads=[op.sums])
    sink = op.sink
    over = [(sink.out, sink.add)] if sink.out and sink.add else []
    if isinstance(op, CatBack):
        return Traffic([op.whole, *_given(sink.add)], _given(sink.out, sink.sums), over)
    parts = [part.buffer for part in op.parts]
    if isinstance(op, WindowBack):
        return Traffic(parts + _given(sink.add), _given(sink.out, sink.sums), over)
    store = op.store if isinstance(op, ConvBack) else None
    into = store if isinstance(op, ConvBack) else sink.out
    over += [(into, b) for b in parts if into]
    return Traffic(parts + _given(sink.add), _given(sink.out, sink.sums, store), over)


def edge_traffic(op: Enter | Leave) -> Traffic:
    return Traffic(writes=[op.out]) if isinstance(op, Enter) else Traffic(reads=[op.source])


def room(floats: int) -> Tensor:
    """Memory for an arena, in large pages where the system has them: a tile touches many pages at once."""
    if hasattr(mmap, "MADV_HUGEPAGE") and 4 * floats >= WORTH_LARGE_PAGES:
        with contextlib.suppress(OSError):  # a kernel without them, or no memory: torch's own error says how much
            pages = mmap.mmap(-1, 4 * floats, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
            return torch.frombuffer(pages, dtype=torch.float32)
    return torch.empty(floats)


def _given(*buffers: Buffer | None) -> list[Buffer]:
    return [b for b in buffers if b is not None]


def place(traffic: Sequence[Traffic], size: Callable[[Buffer], int], keep: bool) -> tuple[dict[Buffer, int], int]:
    """Offsets in an arena and its size; with `keep`, activations stay until the backward."""
    last = {b: i for i, t in enumerate(traffic) for b in (*t.writes, *t.reads)}
    sizes: list[int] = []
    slot: dict[Buffer, int] = {}
    free: list[int] = []

    def dies(buffer: Buffer, now: int) -> bool:
        return last[buffer] == now and buffer in slot and not (keep and not buffer.sums)

    for now, t in enumerate(traffic):
        taken: set[Buffer] = set()
        for new in t.writes:
            olds = [o for n, o in t.over if n is new and dies(o, now) and o not in taken]
            old = next((o for o in olds if sizes[slot[o]] >= size(new)), None)
            if old is not None:
                taken.add(old)
                slot[new] = slot[old]
                continue
            fits = sorted((sizes[s], s) for s in free if size(new) <= sizes[s] <= 2 * size(new))
            if fits:
                slot[new] = fits[0][1]
                free.remove(slot[new])
            else:
                slot[new] = len(sizes)
                sizes.append(size(new))
        free += {slot[b] for b in (*t.reads, *t.writes) if dies(b, now) and b not in taken}
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return {b: starts[s] for b, s in slot.items()}, starts[-1]


class Memory:
    """The arena of one program and the addresses in it; leased to one run at a time."""

    def __init__(
        self, lib: Library, layers: Layers, forward: Forward, images: int, adjoint: list[BackOp] | None, pixels: bool
    ) -> None:
        self.lib, self.layers, self.images, self.pixels = lib, layers, images, pixels
        self.blocks = images if pixels else -(-images // lib.lanes)
        offsets, total = place([forward_traffic(op) for op in forward.ops], self.size, keep=adjoint is not None)
        if adjoint is not None:
            more, extra = place([backward_traffic(op) for op in adjoint], self.size, keep=False)
            offsets |= {b: total + offset for b, offset in more.items()}
            total += extra
        self.arena = room(total + 16)
        self.base = (-self.arena.data_ptr() // 4) % 16
        self.offset = offsets
        self.norms: dict[BatchNorm, Any] = {}
        self.vectors: dict[BatchNorm, Tensor] = {}
        for op in forward.ops:
            if isinstance(op, BatchNorm):
                self.vectors[op] = torch.empty(len(VECTORS), op.buffer.channels)
                self.norms[op] = library.BatchNorm(
                    images=images,
                    channels=op.buffer.channels,
                    area=op.buffer.height * op.buffer.width,
                    **{name: self.vector(op, name) for name in VECTORS},
                )

    def size(self, buffer: Buffer) -> int:
        """Floats that a buffer takes."""
        inner = 3 * self.lib.lanes if buffer.sums else self.plane(buffer)
        return -(-self.blocks * buffer.channels * inner // 16) * 16

    def at(self, buffer: Buffer | None) -> int:
        """The address of a buffer."""
        return 0 if buffer is None else self.arena.data_ptr() + 4 * (self.base + self.offset[buffer])

    def plane(self, buffer: Buffer) -> int:
        """Floats between the channels of a buffer."""
        return (pixel_plane if self.pixels else plane)(buffer.height, buffer.width, self.lib.lanes)

    def vector(self, norm: BatchNorm, name: str) -> int:
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
