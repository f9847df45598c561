"""Buffers, views of them, and what the stages ask of an operation: `Step` before it is planned, `Op` afterwards.

A step is one operation of the traced model. `regions` asks what it works on, `plan` lets it put its ops into a program.
An op reads views and stores buffers. `plan` lets it put its own backward into the backward program, `memory` asks what
it reads and writes, and `lower` lets it write its call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import nn
from torch.fx import Node

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint, Planner
    from .norms import BatchNorm

Activation = Literal["", "relu", "gelu", "relu6", "hardswish", "silu"]


@dataclass(eq=False)
class Buffer:
    """A stored tensor in the blocked layout."""

    channels: int
    height: int
    width: int
    sums: bool = False  # not an activation but the statistics of one

    @property
    def size(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    def another(self) -> Buffer:
        """A new one of the same shape."""
        return Buffer(*self.size)

    def statistics(self) -> Buffer:
        """A new one for the sums that a batch norm needs of this one."""
        return Buffer(self.channels, 3, 1, sums=True)


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

    @property
    def buffers(self) -> list[Buffer]:
        return [term.buffer for term in self.terms]


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

    def traffic(self, parts: list[Part], into: Buffer | None = None, store: Buffer | None = None) -> Traffic:
        """Of an operation that reads these parts of a gradient; `into` may take the place of one of them.

        Forward buffers never move and are left out.
        """
        over = [(self.out, self.add)] if self.out and self.add else []
        read = [part.buffer for part in parts]
        over += [(into, buffer) for buffer in read if into]
        return Traffic(read + given(self.add), given(self.out, self.sums, store), over)


@dataclass
class Traffic:
    """What an operation reads and writes, and which write may take the place of which read."""

    reads: list[Buffer] = field(default_factory=list)
    writes: list[Buffer] = field(default_factory=list)
    over: list[tuple[Buffer, Buffer]] = field(default_factory=list)


def given(*buffers: Buffer | None) -> list[Buffer]:
    """Those that are there."""
    return [b for b in buffers if b is not None]


def arguments(node: Node, *names: str) -> dict[str, Any]:
    """What a call in the traced model is given, by name."""
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


class Op(ABC):
    """One operation of a forward or backward program."""

    @abstractmethod
    def traffic(self) -> Traffic:
        """What it reads and writes."""

    @abstractmethod
    def write(self, to: Writer, backwards: int) -> None:
        """Its call; `backwards` says from which end of the batch it walks."""

    def differentiate(self, adjoint: Adjoint) -> None:  # noqa: B027
        """What it adds to the backward program: nothing, if those who read or make its buffers see to it."""


@dataclass
class Step:
    """One operation of the traced model: its name, those of the values that it reads, and its module, if it has one."""

    name: str
    inputs: list[str]
    module: nn.Module | None = None
    inplace: bool = False
    on: str = ""  # what it works on: image, line or rows; empty if on anything

    kind: ClassVar[str]
    learns: ClassVar[bool] = False  # has weights of its own: a region may start here
    multiplies: ClassVar[bool] = False  # by a weight that may be sparse
    ends: ClassVar[bool] = False  # what follows has no pixels

    def works_on(self, now: str) -> str:
        """What kind of region it needs, in a region of the kind `now`."""
        return self.on

    @abstractmethod
    def plan(self, planner: Planner) -> None:
        """Its ops, and the view of its result."""


class Identity(Step):
    """Lets its input pass: who reads it reads that."""

    kind = "identity"

    def plan(self, planner: Planner) -> None:
        pass
