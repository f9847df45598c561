"""The backward program of a region: the forward program read from its end.

The gradient of a stored buffer is a sum of contributions, each either a plain buffer or a gradient that comes
through a batch norm, `scale * h + gz * z + gb`. It is not computed for its own sake: the convolution that made
the buffer reads the contributions as it fills its band. A convolution's input gradient closes the gate of the
ReLU in front of it (or takes the slope of another activation) and sums what that layer's batch norm needs, before it
is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .plan import (
    BackOp,
    BatchNormBack,
    Buffer,
    Cat,
    CatBack,
    Conv,
    ConvBack,
    Enter,
    Forward,
    GradientSink,
    LayerNorm,
    LayerNormBack,
    Leave,
    Part,
    Pass,
    PassBack,
    Term,
    View,
    Window,
    WindowBack,
)  # fmt: skip


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
                self.ops.append(Enter(op.position, out))
                self._give(op.source, Part(out))
            elif isinstance(op, Conv):
                self._conv(op, unwanted)
            elif isinstance(op, Pass):
                self._pass(op)
            elif isinstance(op, LayerNorm):
                self._layer_norm(op)
            elif isinstance(op, Window):
                self._window(op, unwanted)
            elif isinstance(op, Cat):
                self._cat(op, unwanted)
            elif isinstance(op, Enter) and op.out not in unwanted:
                gradient = self._plain(self.pending.pop(op.out, []), op.out)
                self.ops += [Leave(gradient, op.position)] if gradient else []
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
        reading, sink = self._into(op, unwanted, alone=op.dense)
        self.ops.append(ConvBack(op, parts, reading, sink, store))
        self._handed_on(op, sink)

    def _window(self, op: Window, unwanted: set[Buffer]) -> None:
        parts = self._readable(self.pending.pop(op.out, []), op.out)
        if parts:
            reading, sink = self._into(op, unwanted)
            if sink.out is not None:
                self.ops.append(WindowBack(op, parts, reading, sink))
                self._handed_on(op, sink)

    def _into(self, op: Conv | Window, unwanted: set[Buffer], alone: bool = False) -> tuple[View, GradientSink]:
        """What a layer reads of its input in the backward, and where the gradient of that goes."""
        view = op.source
        if view.raw and op.made is None:  # the input is a buffer: add to its gradient
            return view, GradientSink() if view.like in unwanted else self._joining(view.like, alone)
        reading = View([Term(op.made)]) if op.made else view
        others = self._plain(self.pending.pop(op.made, []), op.made) if op.made else None
        return reading, self._sink(view, others)

    def _handed_on(self, op: Conv | Window, sink: GradientSink) -> None:
        if not op.source.raw or op.made is not None:
            self._distribute(op.source, sink)

    def _cat(self, op: Cat, unwanted: set[Buffer]) -> None:
        whole = self._plain(self.pending.pop(op.out, []), op.out)
        first = 0
        for view in op.sources:
            if whole is not None and not (view.raw and view.like in unwanted):
                sink = self._joining(view.like) if view.raw else self._sink(view, None)
                self.ops.append(CatBack(whole, first, view.like, sink))
                if not view.raw:
                    self._distribute(view, sink)
            first += view.like.channels

    def _joining(self, buffer: Buffer, alone: bool = False) -> GradientSink:
        """The sink of one more contribution to a gradient; it adds one that is known, unless it must stand alone."""
        known = self.pending.get(buffer, [])
        plain = None if alone else next((p for p in known if p.norm is None), None)
        if plain:
            known.remove(plain)
        out = _like(buffer)
        self._give(buffer, Part(out))
        return GradientSink(out, plain.buffer if plain else None)

    def _layer_norm(self, op: LayerNorm) -> None:
        parts = self._readable(self.pending.pop(op.out, []), op.out)
        if parts:
            self.ops.append(LayerNormBack(op, parts, self._joining(op.source)))

    def _pass(self, op: Pass) -> None:
        known = self.pending.pop(op.out, []) if op.out else []
        if op.position is None and not known:
            return
        if op.position is None:
            parts, others = self._readable(known, op.source.like), None
        else:
            parts, others = [], self._plain(known, op.source.like)
        sink = self._sink(View(op.source.terms, op.source.activation, op.out), others)
        self.ops.append(PassBack(parts, sink, op.source.like, op.position, op.noise))
        self._distribute(op.source, sink)

    def _sink(self, view: View, add: Buffer | None) -> GradientSink:
        """Gate and sums for the gradient of a view."""
        gate = view.terms[0] if view.activation else None
        if view.made and view.activation == "relu":
            gate = Term(view.made)
        norm = next((term.norm for term in view.terms if term.norm), None)
        sums = _sums(view.like) if norm else None
        return GradientSink(_like(view.like), add, gate, view.activation, sums, norm)

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
                self.ops.append(BatchNormBack(term.norm, sums))
            self._give(term.buffer, Part(sink.out, term.norm))


def _like(buffer: Buffer) -> Buffer:
    return Buffer(buffer.channels, buffer.height, buffer.width)


def _sums(buffer: Buffer) -> Buffer:
    return Buffer(buffer.channels, 3, 1, sums=True)
