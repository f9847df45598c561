"""From the steps of a region to its programs: a list of ops forward, and one backward.

Forward, a value is not computed when it is named. It is kept as a View, say relu(sum of terms), each term a stored
buffer with an optional batch norm. A convolution reads a view directly and stores its raw result. A view is stored
(`made`) only if more than one reader needs it, or if its ReLU hides a sum.

Backward, the gradient of a stored buffer is a sum of contributions, each either a plain buffer or a gradient that comes
through a batch norm, `scale * h + gz * z + gb`. It is not computed for its own sake: the convolution that made the
buffer reads the contributions as it fills its band. A convolution's input gradient closes the gate of the ReLU in front
of it (or takes the slope of another activation) and sums what that layer's batch norm needs, before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from .operations.base import Buffer, GradientSink, Identity, Op, Part, Step, Term, View
from .operations.convolution import Conv
from .operations.edges import Enter, Leave
from .operations.elementwise import Pass, PassBack
from .operations.pooling import Window
from .regions import Region


@dataclass
class Forward:
    """The forward program of a region for one input size."""

    ops: list[Op] = field(default_factory=list)
    pooled: set[int] = field(default_factory=set)  # outputs that are means over pixels


class Planner:
    """Turns the steps of a region into a forward program; layers in `dense` run in torch."""

    def __init__(self, region: Region, sizes: Sequence[tuple[int, int, int]], dense: set[nn.Module]) -> None:
        self.region, self.dense = region, dense
        self.program = Forward()
        self.views: dict[str, View] = {}
        self.maker: dict[Buffer, Conv | Pass] = {}  # who can sum for a batch norm as it stores a buffer
        layers = [step.module for step in region.steps if step.learns]
        if len(set(layers)) < len(layers):
            raise ValueError("a layer is used twice")
        self._alias: dict[str, str] = {}
        self.uses: dict[str, int] = {}
        for step in region.steps:
            if isinstance(step, Identity):
                self._alias[step.name] = self.real(step.inputs[0])
            else:
                self._use(step.inputs)
        self._use(region.outputs)
        for position, (name, size) in enumerate(zip(region.inputs, sizes, strict=True)):
            buffer = Buffer(*size)
            self.add(Enter(position, buffer))
            self.views[name] = View([Term(buffer)])

    def _use(self, names: Sequence[str]) -> None:
        for name in names:
            self.uses[self.real(name)] = self.uses.get(self.real(name), 0) + 1

    def build(self) -> Forward:
        for step in self.region.steps:
            if step.inplace and (self.uses[self.real(step.inputs[0])] > 1 or step.inputs[0] in self.region.inputs):
                raise ValueError("a value is used after it was changed in place")
            step.plan(self)
        for position, name in enumerate(self.region.outputs):
            if position not in self.program.pooled:
                self.add(Leave(self.store(name), position))
        return self.program

    def add(self, op: Op) -> None:
        self.program.ops.append(op)

    def put(self, step: Step, op: Op, out: Buffer) -> None:
        """An op, and the buffer that it stores as the result of a step."""
        self.add(op)
        self.views[step.name] = View([Term(out)])

    def real(self, name: str) -> str:
        """The value behind a name."""
        return self._alias.get(name, name)

    def view(self, name: str) -> tuple[str, View]:
        """A value, and how it is read."""
        name = self.real(name)
        view = self.views[name]
        return name, View([Term(view.made)]) if view.made else view

    def store(self, name: str) -> Buffer:
        """The buffer that holds a value, stored by a pass of its own if need be."""
        view = self.views[self.real(name)]
        if view.raw:
            return view.like
        if view.made is None:
            view.made = view.like.another()
            op = self.maker[view.made] = Pass(view, out=view.made)
            self.add(op)
        return view.made

    def once(self, name: str, view: View) -> View:
        """A view that one reader evaluates; what others read too is stored first."""
        return view if view.raw or self.uses[name] == 1 else View([Term(self.store(name))])

    def on_the_way(self, name: str, view: View) -> Buffer | None:
        """Where a reader of all of a view stores it, if it is a sum or others read it too."""
        if not view.raw and (self.uses[name] > 1 or len(view.terms) > 1):
            view.made = view.like.another()
            return view.made
        return None


@dataclass
class Adjoint:
    """Builds the backward program; `wanted` says which region inputs need a gradient."""

    forward: Forward
    wanted: Sequence[bool]
    ops: list[Op] = field(default_factory=list)
    pending: dict[Buffer, list[Part]] = field(default_factory=dict)

    def build(self) -> list[Op]:
        entries = [op for op in self.forward.ops if isinstance(op, Enter)]
        self.unwanted = {op.out for op in entries if not self.wanted[op.position]}
        for op in reversed(self.forward.ops):
            op.differentiate(self)
        return self.ops

    def give(self, buffer: Buffer, part: Part) -> None:
        self.pending.setdefault(buffer, []).append(part)

    def take(self, buffer: Buffer) -> list[Part]:
        """What is known of a buffer's gradient: at most one part through a norm, no more terms than a Source holds."""
        return self.readable(self.pending.pop(buffer, []), buffer)

    def readable(self, parts: list[Part], like: Buffer) -> list[Part]:
        through = [p for p in parts if p.norm]
        plain = [p for p in parts if not p.norm]
        while len(through) > 1 or 2 * len(through) + len(plain) > 3:
            batch = [through.pop()] if len(through) > 1 else [plain.pop(), plain.pop()]
            out = like.another()
            self.ops.append(PassBack(batch, GradientSink(out), like))
            plain.append(Part(out))
        return through + plain

    def plain(self, parts: list[Part], like: Buffer) -> Buffer | None:
        """The sum of the parts as one buffer."""
        if not parts:
            return None
        parts = self.readable(parts, like)
        if len(parts) == 1 and parts[0].norm is None:
            return parts[0].buffer
        out = like.another()
        self.ops.append(PassBack(parts, GradientSink(out), like))
        return out

    def into(self, op: Conv | Window, alone: bool = False) -> tuple[View, GradientSink]:
        """What a layer reads of its input in the backward, and where the gradient of that goes."""
        view = op.source
        if view.raw and op.made is None:  # the input is a buffer: add to its gradient
            return view, GradientSink() if view.like in self.unwanted else self.joining(view.like, alone)
        reading = View([Term(op.made)]) if op.made else view
        others = self.plain(self.pending.pop(op.made, []), op.made) if op.made else None
        return reading, self.sink(view, others)

    def handed_on(self, op: Conv | Window, sink: GradientSink) -> None:
        if not op.source.raw or op.made is not None:
            self.distribute(op.source, sink)

    def joining(self, buffer: Buffer, alone: bool = False) -> GradientSink:
        """The sink of one more contribution to a gradient; it adds one that is known, unless it must stand alone."""
        known = self.pending.get(buffer, [])
        plain = None if alone else next((p for p in known if p.norm is None), None)
        if plain:
            known.remove(plain)
        out = buffer.another()
        self.give(buffer, Part(out))
        return GradientSink(out, plain.buffer if plain else None)

    def sink(self, view: View, add: Buffer | None) -> GradientSink:
        """Gate and sums for the gradient of a view."""
        gate = view.terms[0] if view.activation else None
        if view.made and view.activation == "relu":
            gate = Term(view.made)
        norm = next((term.norm for term in view.terms if term.norm), None)
        sums = view.like.statistics() if norm else None
        return GradientSink(view.like.another(), add, gate, view.activation, sums, norm)

    def distribute(self, view: View, sink: GradientSink) -> None:
        """Hand the gradient of a view to its terms."""
        assert sink.out is not None
        for term in view.terms:
            if term.norm is not None:
                sums = sink.sums
                if term.norm is not sink.norm:  # a second norm behind the same gradient: sum once more
                    sums = term.buffer.statistics()
                    more = GradientSink(sums=sums, norm=term.norm)
                    self.ops.append(PassBack([Part(sink.out)], more, term.buffer))
                assert sums is not None
                self.ops.append(term.norm.backward(sums))
            self.give(term.buffer, Part(sink.out, term.norm))
