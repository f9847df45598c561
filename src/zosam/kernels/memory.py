"""Where buffers lie: one arena per program, with room shared by buffers that never live at the same time.

Every address that C is given is found here, and every structure that describes a view or a gradient to it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .build import MOVE, MOVE_IN, MOVE_OUT, PIXEL_MOVE, Library, structure
from .operations.base import Activation, Buffer, GradientSink, Op, Part, Traffic, View
from .operations.index import pixel_plane, pixel_row, plane

if TYPE_CHECKING:
    from .lower import Word
    from .operations.norms import BatchNorm

WORTH_LARGE_PAGES = 16 << 20  # bytes
PAST_CACHES = 1 << 20  # bytes of a buffer from which on it is written past the caches
IN_PLACE = 12 << 20  # the same, where it takes the place of what was just read
VECTORS = ("mean", "rstd", "scale", "shift", "gz", "gb")
ACTIVATIONS: tuple[Activation, ...] = ("", "relu", "gelu", "relu6", "hardswish", "silu")  # by their number in C
Source = structure("Source", pointers="x xs xc xb y ys yc yb z out m", integers="activation past")
Sink = structure("Sink", pointers="out bias add gate gs gc gb with_ center stats", integers="activation past")


def room(floats: int) -> Tensor:
    """Memory for an arena, in large pages where the system has them: a tile touches many pages at once."""
    if hasattr(mmap, "MADV_HUGEPAGE") and 4 * floats >= WORTH_LARGE_PAGES:
        with contextlib.suppress(OSError):  # a kernel without them, or no memory: torch's own error says how much
            pages = mmap.mmap(-1, 4 * floats, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
            return torch.frombuffer(pages, dtype=torch.float32)
    return torch.empty(floats)


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

    def __init__(self, lib: Library, forward: list[Op], backward: list[Op] | None, images: int, pixels: bool) -> None:
        self.lib, self.lanes, self.images, self.pixels = lib, lib.lanes, images, pixels
        self.blocks = images if pixels else -(-images // lib.lanes)
        offsets, total = place([op.traffic() for op in forward], self.size, keep=backward is not None)
        if backward is not None:
            more, extra = place([op.traffic() for op in backward], self.size, keep=False)
            offsets |= {b: total + offset for b, offset in more.items()}
            total += extra
        self.arena = room(total + 16)
        self.base = (-self.arena.data_ptr() // 4) % 16
        self.offset = offsets
        self.norms: dict[BatchNorm, Any] = {}
        self.vectors: dict[BatchNorm, Tensor] = {}

    def size(self, buffer: Buffer) -> int:
        """Floats that a buffer takes."""
        inner = 3 * self.lanes if buffer.sums else self.plane(buffer)
        return -(-self.blocks * buffer.channels * inner // 16) * 16

    def at(self, buffer: Buffer | None) -> int:
        """The address of a buffer."""
        return 0 if buffer is None else self.arena.data_ptr() + 4 * (self.base + self.offset[buffer])

    def plane(self, buffer: Buffer) -> int:
        """Floats between the channels of a buffer."""
        return (pixel_plane if self.pixels else plane)(buffer.height, buffer.width, self.lanes)

    def past(self, buffer: Buffer | None, read: Sequence[Buffer] = ()) -> int:
        """Whether a large buffer goes past the caches: unless it takes the place of one that is read just then."""
        if buffer is None:
            return 0
        return int(4 * self.size(buffer) >= (IN_PLACE if self.at(buffer) in map(self.at, read) else PAST_CACHES))

    def vector(self, norm: BatchNorm, name: str) -> int:
        """The address of one of the per-channel vectors of a norm."""
        if norm not in self.vectors:
            self.vectors[norm] = torch.empty(len(VECTORS), norm.buffer.channels)
        return self.vectors[norm][VECTORS.index(name)].data_ptr()

    # --- sizes, and moves between layouts ----------------------------------------------------------------------------

    def shape(self, buffer: Buffer) -> tuple[int, int, int, int]:
        """[N, C, H, W]."""
        return self.images, *buffer.size

    def extent(self, buffer: Buffer) -> tuple[int, int, int, int, int]:
        """The same, and the floats between channels."""
        return *self.shape(buffer), self.plane(buffer)

    def area(self, buffer: Buffer) -> tuple[int, int, int, int]:
        """Images, channels, vectors and floats of a channel, as an element-wise pass sees them."""
        images, channels, height, width, plane = self.extent(buffer)
        if self.pixels:  # each picture is a block of its own
            return images * self.lanes, channels, height * pixel_row(width, self.lanes) // self.lanes, plane
        return images, channels, height * width, plane

    def move(self, source: Word, to: Word, buffer: Buffer, strides: Sequence[Word], way: int, threads: Word) -> Any:
        """The call that moves a buffer in or out."""
        if self.pixels:
            return PIXEL_MOVE, source, to, *self.extent(buffer), pixel_row(buffer.width, self.lanes), *strides, way
        return MOVE, source, to, *self.extent(buffer), *strides, way, threads

    def move_out(self, address: int, buffer: Buffer, layout: torch.memory_format) -> Tensor:
        """Now: blocked -> [N, C, H, W] in one of torch's own layouts."""
        plain = torch.empty(self.shape(buffer), memory_format=layout)
        threads = torch.get_num_threads()
        self.lib.call(*self.move(address, plain.data_ptr(), buffer, plain.stride(), MOVE_OUT, threads))
        return plain

    def move_in(self, plain: Tensor, buffer: Buffer) -> None:
        """Now: [N, C, H, W] in any strides -> blocked."""
        threads = torch.get_num_threads()
        self.lib.call(*self.move(plain.data_ptr(), self.at(buffer), buffer, plain.stride(), MOVE_IN, threads))

    # --- as C sees views and gradients -------------------------------------------------------------------------------

    def source(self, view: View, out: Buffer | None = None) -> Any:
        """A view as a C Source."""
        first = view.terms[0]
        s = Source(activation=ACTIVATIONS.index(view.activation), out=self.at(out), x=self.at(first.buffer))
        s.past = self.past(out, view.buffers)
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
        s = Source(out=self.at(out), x=self.at(parts[0].buffer), past=self.past(out))
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
        k = Sink(out=self.at(sink.out), add=self.at(sink.add), stats=self.at(sink.sums), past=self.past(sink.out))
        if sink.gate is not None:
            k.gate, k.activation = self.at(sink.gate.buffer), ACTIVATIONS.index(sink.activation)
            if sink.gate.norm is not None:
                k.gs, k.gc, k.gb = (self.vector(sink.gate.norm, name) for name in ("scale", "mean", "shift"))
        if sink.norm is not None:
            k.with_, k.center = self.at(sink.norm.buffer), self.vector(sink.norm, "mean")
        return k
