"""The backward program of a region: the forward program read from its end.

The gradient of a stored buffer is a sum of contributions, each either a plain buffer or a gradient that comes
through a batch norm, `scale * h + gz * z + gb`. It is not computed for its own sake: the convolution that made
the buffer reads the contributions as it fills its band. A convolution's input gradient closes the gate of the
ReLU in front of it and sums what that layer's batch norm needs, before it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .plan import Buffer, Conv, Enter, Forward, Leave, NormStep, Pass, Term, View


@dataclass(eq=False)
class Part:
    """One contribution to a gradient: a buffer, or a buffer that comes through a batch norm."""

    buffer: Buffer
    norm: NormStep | None = None


@dataclass(eq=False)
class GradientSink:
    """What happens to a gradient before it is stored: add, gate by a ReLU, sum for a batch norm."""

    out: Buffer | None = None
    add: Buffer | None = None
    gate: Term | None = None
    sums: Buffer | None = None
    norm: NormStep | None = None


@dataclass(eq=False)
class ConvBack:
    """Input and weight gradient of a convolution."""

    conv: Conv
    parts: list[Part]
    source: View
    sink: GradientSink
    store: Buffer | None = None  # the gradient of the output, if someone else wants it too


@dataclass(eq=False)
class PassBack:
    """An element-wise pass over gradients; with a position, the spread of that output's pooled gradient."""

    parts: list[Part]
    sink: GradientSink
    like: Buffer
    position: int | None = None


@dataclass(eq=False)
class BiasBack:
    """The gradient of a convolution's bias: the output gradient summed per channel."""

    conv: Conv
    parts: list[Part]
    sums: Buffer


@dataclass(eq=False)
class NormBack:
    """From sums to the gradients of gamma and beta, and to what a Part through this norm needs."""

    norm: NormStep
    sums: Buffer


@dataclass(eq=False)
class EnterBack:
    """Gradient of a region output -> buffer."""

    position: int
    out: Buffer


@dataclass(eq=False)
class LeaveBack:
    """Buffer -> gradient of a region input; None if nothing came."""

    source: Buffer | None
    position: int


BackOp = ConvBack | PassBack | BiasBack | NormBack | EnterBack | LeaveBack


@dataclass
class Adjoint:
    """Builds the backward program; `wanted` says which region inputs need a gradient."""

    forward: Forward
    wanted: Sequence[bool]
    ops: list[BackOp] = field(default_factory=list)
    pending: dict[Buffer, list[Part]] = field(default_factory=dict)

    def build(self) -> list[BackOp]:
        unwanted = {op.out for op in self.forward.ops if isinstance(op, Enter) and not self.wanted[op.position]}
        for op in reversed(self.forward.ops):
            if isinstance(op, Leave):
                out = _like(op.source)
                self.ops.append(EnterBack(op.position, out))
                self._give(op.source, Part(out))
            elif isinstance(op, Conv):
                self._conv(op, unwanted)
            elif isinstance(op, Pass):
                self._pass(op)
            elif isinstance(op, Enter) and op.out not in unwanted:
                self.ops.append(LeaveBack(self._plain(self.pending.pop(op.out, []), op.out), op.position))
        return self.ops

    def _give(self, buffer: Buffer, part: Part) -> None:
        self.pending.setdefault(buffer, []).append(part)

    def _readable(self, parts: list[Part], like: Buffer) -> list[Part]:
        """At most one part through a norm, and no more terms than a Source can hold."""
        through = [p for p in parts if p.norm]
        plain = [p for p in parts if not p.norm]
        while len(through) > 1 or 2 * len(through) + len(plain) > 3:
            batch = [through.pop()] if len(through) > 1 else [plain.pop(), plain.pop()]
            out = _like(like)
            self.ops.append(PassBack(batch, GradientSink(out), like))
            plain.append(Part(out))
        return through + plain

    def _plain(self, parts: list[Part], like: Buffer) -> Buffer | None:
        """The sum of the parts as one buffer."""
        if not parts:
            return None
        parts = self._readable(parts, like)
        if len(parts) == 1 and parts[0].norm is None:
            return parts[0].buffer
        out = _like(like)
        self.ops.append(PassBack(parts, GradientSink(out), like))
        return out

    def _conv(self, op: Conv, unwanted: set[Buffer]) -> None:
        parts = self._readable(self.pending.pop(op.out, []), op.out)
        if not parts:
            return
        store = None
        if op.dense or op.add:
            if op.dense or (len(parts) == 1 and parts[0].norm is None):
                parts = [Part(self._plain(parts, op.out) or op.out)]
            else:
                store = _like(op.out)
            if op.add:
                self._give(op.add, Part(store or parts[0].buffer))
        if op.module.bias is not None:
            self.ops.append(BiasBack(op, parts, _sums(op.out)))
        view = op.source
        if view.raw and op.made is None:  # the input is a buffer: add to its gradient
            sink = GradientSink()
            if view.like not in unwanted:
                known = self.pending.get(view.like, [])
                plain = next((p for p in known if p.norm is None), None)
                if plain and not op.dense:
                    known.remove(plain)
                    sink.add = plain.buffer
                sink.out = _like(view.like)
                self._give(view.like, Part(sink.out))
            self.ops.append(ConvBack(op, parts, view, sink, store))
            return
        reading = View([Term(op.made)]) if op.made else view
        others = self._plain(self.pending.pop(op.made, []), op.made) if op.made else None
        sink = self._sink(view, others)
        self.ops.append(ConvBack(op, parts, reading, sink, store))
        self._distribute(view, sink)

    def _pass(self, op: Pass) -> None:
        known = self.pending.pop(op.out, []) if op.out else []
        if op.position is None and not known:
            return
        if op.position is None:
            parts, others = self._readable(known, op.source.like), None
        else:
            parts, others = [], self._plain(known, op.source.like)
        sink = self._sink(View(op.source.terms, op.source.relu, op.out), others)
        self.ops.append(PassBack(parts, sink, op.source.like, op.position))
        self._distribute(op.source, sink)

    def _sink(self, view: View, add: Buffer | None) -> GradientSink:
        """Gate and sums for the gradient of a view."""
        gate = None
        if view.relu:
            gate = Term(view.made) if view.made else view.terms[0]
        norm = next((term.norm for term in view.terms if term.norm), None)
        sums = _sums(view.like) if norm else None
        return GradientSink(_like(view.like), add, gate, sums, norm)

    def _distribute(self, view: View, sink: GradientSink) -> None:
        """Hand the gradient of a view to its terms."""
        assert sink.out is not None
        for term in view.terms:
            if term.norm is not None:
                sums = sink.sums
                if term.norm is not sink.norm:  # a second norm behind the same gradient: sum once more
                    sums = _sums(term.buffer)
                    more = GradientSink(sums=sums, norm=term.norm)
                    self.ops.append(PassBack([Part(sink.out)], more, term.buffer))
                assert sums is not None
                self.ops.append(NormBack(term.norm, sums))
            self._give(term.buffer, Part(sink.out, term.norm))


def _like(buffer: Buffer) -> Buffer:
    return Buffer(buffer.channels, buffer.height, buffer.width)


def _sums(buffer: Buffer) -> Buffer:
    return Buffer(buffer.channels, 3, 1, sums=True)
