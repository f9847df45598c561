"""Where buffers lie: one arena per program, with room shared by buffers that never live at the same time."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .plan import Buffer, Enter, Leave, NormStep, Op, Pass, RowNorm
from .plan_backward import BackOp, ConvBack, NormBack

WORTH_LARGE_PAGES = 16 << 20  # bytes


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
    if isinstance(op, NormStep):
        return Traffic(reads=[op.sums])
    if isinstance(op, RowNorm):
        return Traffic([op.source], [op.out], [(op.out, op.source)])
    source = [term.buffer for term in op.source.terms]
    if isinstance(op, Pass):
        return Traffic(source, _given(op.out, op.sums), [(op.out, b) for b in source if op.out])
    over = [(op.made, b) for b in reversed(source) if op.made]
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
    if isinstance(op, NormBack):
        return Traffic(reads=[op.sums])
    parts = [part.buffer for part in op.parts]
    sink = op.sink
    over = [(sink.out, sink.add)] if sink.out and sink.add else []
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
