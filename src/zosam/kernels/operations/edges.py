"""Tensors that enter and leave a region, or the gradients of those; inside, all are pictures [N, C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..build import MOVE_IN, MOVE_IN_FINITE, MOVE_OUT
from ..lower import THREADS, Slot
from .base import Buffer, Op, Part, Traffic

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint

HIGH, WIDE = 2, 4  # rows of a linear layer's input lie side by side like these pixels: just one register tile
ROWS = HIGH * WIDE
RANKS = {"image": 4, "line": 3}  # of what enters a region; rows may have any from two on


def as_image(x: Tensor, kind: str) -> Tensor:
    """A line is a picture of one row, rows are pixels of small pictures, filled up by zeros that nothing comes of."""
    if kind == "image":
        return x
    if kind == "line":
        return x.unsqueeze(2)
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % ROWS:
        rows = nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS))
    return rows.view(-1, HIGH, WIDE, x.shape[-1]).permute(0, 3, 1, 2)


def as_given(y: Tensor, kind: str, lead: Sequence[int]) -> Tensor:
    """The other way round; `lead` are the sizes of rows without their features."""
    if kind == "image" or y.dim() == 2:
        return y
    if kind == "line":
        return y.squeeze(2)
    rows = y.permute(0, 2, 3, 1).reshape(-1, y.shape[1])
    return rows[: torch.Size(lead).numel()].view(*lead, y.shape[1])


def no_view(x: Tensor) -> Tensor:
    """The same memory as a tensor of its own: autograd lets what follows edit it in place."""
    return torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride()) if x._is_view() else x


def plain_shape(kind: str, lead: Sequence[int], size: tuple[int, int, int, int]) -> tuple[int, ...]:
    """The shape that a picture has outside."""
    images, channels, height, width = size
    if kind == "rows":
        return (*lead, channels)
    return (images, channels, height, width) if kind == "image" else (images, channels, width)


@dataclass(eq=False)
class Enter(Op):
    """Region input -> buffer."""

    position: int
    out: Buffer

    def traffic(self) -> Traffic:
        return Traffic(writes=[self.out])

    def differentiate(self, adjoint: Adjoint) -> None:
        if self.out not in adjoint.unwanted:
            gradient = adjoint.plain(adjoint.pending.pop(self.out, []), self.out)
            adjoint.ops += [Leave(gradient, self.position)] if gradient else []

    def write(self, to: Writer, backwards: int) -> None:
        source = Slot("arrival", self.position)
        strides = [Slot("stride", self.position, axis) for axis in range(4)]
        way = MOVE_IN if to.gradients else MOVE_IN_FINITE
        to.script.add(*to.memory.move(source, to.memory.at(self.out), self.out, strides, way, THREADS))


@dataclass(eq=False)
class Leave(Op):
    """Buffer -> region output."""

    source: Buffer
    position: int

    def traffic(self) -> Traffic:
        return Traffic(reads=[self.source])

    def differentiate(self, adjoint: Adjoint) -> None:
        out = self.source.another()
        adjoint.ops.append(Enter(self.position, out))
        adjoint.give(self.source, Part(out))

    def write(self, to: Writer, backwards: int) -> None:
        size = to.memory.shape(self.source)
        to.departures[self.position] = size, to.layout
        strides = torch.empty(size, memory_format=to.layout, device="meta").stride()
        out = Slot("departure", self.position)
        to.script.add(*to.memory.move(to.memory.at(self.source), out, self.source, strides, MOVE_OUT, THREADS))
