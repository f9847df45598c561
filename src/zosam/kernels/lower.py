"""From steps to a forward program: lazy views that fold batch norm, residual and activation into their readers.

A value is not computed when it is named. It is kept as a View, say relu(sum of terms), each term a stored buffer
with an optional batch norm. A convolution reads a view directly and stores its raw result. A view is stored
(`made`) only if more than one reader needs it, or if its ReLU hides a sum.
"""

from __future__ import annotations

from torch import nn

from .index import Geometry
from .plan import (
    BatchNorm,
    Buffer,
    Cat,
    Conv,
    Enter,
    Forward,
    LayerNorm,
    Leave,
    Noise,
    Pass,
    Selection,
    Term,
    View,
    Window,
)  # fmt: skip
from .regions import Region
from .steps import Step, both, padding_of
from .trace import Projection


def uses_running_statistics(norm: nn.Module) -> bool:
    """Whether it takes no notice of the batch."""
    return not norm.training and norm._buffers["running_mean"] is not None


class Lowering:
    """Turns the steps of a region into a forward program."""

    def __init__(self, region: Region, sizes: list[tuple[int, int, int]], dense: set[nn.Module]) -> None:
        self.region, self.dense = region, dense
        self.program = Forward()
        self.views: dict[str, View] = {}
        self.maker: dict[Buffer, Conv | Pass] = {}
        self.subsampled: dict[str, Step] = {}
        layers = [step.module for step in region.steps if step.kind in ("conv", "linear", "batch_norm", "layer_norm")]
        if len(set(layers)) < len(layers):
            raise ValueError("a layer is used twice")
        self.alias = {s.name: s.inputs[0] for s in region.steps if s.kind == "identity"}
        self.uses: dict[str, int] = {}
        for step in region.steps:
            for name in step.inputs if step.kind != "identity" else []:
                self.uses[self._real(name)] = self.uses.get(self._real(name), 0) + 1
        for name in region.outputs:
            self.uses[self._real(name)] = self.uses.get(self._real(name), 0) + 1
        for position, (name, size) in enumerate(zip(region.inputs, sizes, strict=True)):
            buffer = Buffer(*size)
            self.program.ops.append(Enter(position, buffer))
            self.views[name] = View([Term(buffer)])

    def lower(self) -> Forward:
        for step in self.region.steps:
            if step.inplace and (self.uses[self._real(step.inputs[0])] > 1 or step.inputs[0] in self.region.inputs):
                raise ValueError("a value is used after it was changed in place")
            if step.kind != "identity":
                getattr(self, f"_{step.kind}")(step)
        for position, name in enumerate(self.region.outputs):
            if position not in self.program.keepdim:
                self.program.ops.append(Leave(self._store(self._real(name)), position))
        return self.program

    def _real(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def _view(self, step: Step, which: int = 0) -> tuple[str, View]:
        name = self._real(step.inputs[which])
        view = self.views[name]
        return name, View([Term(view.made)]) if view.made else view

    def _store(self, name: str) -> Buffer:
        """The buffer that holds a value, stored by a pass of its own if need be."""
        view = self.views[name]
        if view.raw:
            return view.like
        if view.made is None:
            view.made = Buffer(view.like.channels, view.like.height, view.like.width)
            op = Pass(view, out=view.made)
            self.maker[view.made] = op
            self.program.ops.append(op)
        return view.made

    def _conv(self, step: Step) -> None:
        conv = step.module
        assert isinstance(conv, nn.Conv1d | nn.Conv2d)
        name, view = self._view(step)
        like = view.like
        if conv.in_channels != like.channels:
            raise ValueError("channels do not match")
        geometry = Geometry(
            like.channels, conv.out_channels, like.height, like.width, both(conv.kernel_size, 1), conv.stride[0],
            both(padding_of(conv), 0), conv.dilation[0], conv.groups,
        )  # fmt: skip
        self._layer(step, conv, geometry, name, view)

    def _linear(self, step: Step) -> None:
        linear = step.module
        assert isinstance(linear, nn.Linear | Projection)
        name, view = self._view(step)
        geometry = Geometry(view.like.channels, linear.out_features, view.like.height, view.like.width)
        self._layer(step, linear, geometry, name, view)

    def _layer(self, step: Step, module: nn.Module, geometry: Geometry, name: str, view: View) -> None:
        if geometry.out_height < 1 or geometry.out_width < 1:
            raise ValueError("input smaller than the kernel")
        dense = module in self.dense
        made = None
        if not view.raw and (self.uses[name] > 1 or len(view.terms) > 1 or dense):
            if dense or not geometry.reads_every_row:
                view = View([Term(self._store(name))])
            else:
                made = view.made = Buffer(view.like.channels, view.like.height, view.like.width)
        out = Buffer(geometry.outputs, geometry.out_height, geometry.out_width)
        op = Conv(module, geometry, view, out, dense, made)
        self.program.ops.append(op)
        if not dense:
            self.maker[out] = op
        self.views[step.name] = View([Term(out)])

    def _batch_norm(self, step: Step) -> None:
        assert isinstance(step.module, nn.BatchNorm1d | nn.BatchNorm2d)
        buffer = self._store(self._real(step.inputs[0]))
        if uses_running_statistics(step.module):
            norm = BatchNorm(step.module, buffer, None)
            self.program.ops.append(norm)
            self.views[step.name] = View([Term(buffer, norm)])
            return
        maker = self.maker.get(buffer)
        if maker is None:  # nobody who could sum on the way
            maker = Pass(View([Term(buffer)]))
            self.maker[buffer] = maker
            self.program.ops.append(maker)
        if maker.sums is None:
            maker.sums = Buffer(buffer.channels, 3, 1, sums=True)
        norm = BatchNorm(step.module, buffer, maker.sums)
        self.program.ops.append(norm)
        self.views[step.name] = View([Term(buffer, norm)])

    def _subsample(self, step: Step) -> None:
        readers = [other.kind for other in self.region.steps if step.name in other.inputs]
        if readers != ["pad_channels"] or step.name in self.region.outputs:
            raise ValueError("fewer pixels, but not more channels")
        self.subsampled[step.name] = step

    def _pad_channels(self, step: Step) -> None:
        subsampled = self.subsampled.get(step.inputs[0])
        if subsampled is None:
            raise ValueError("more channels, but not fewer pixels")
        name, view = self._view(subsampled)
        if step.module is None:
            step.module = Selection(view.like.channels, subsampled.stride, step.extra)
        assert isinstance(step.module, Selection)
        like, stride = view.like, subsampled.stride
        geometry = Geometry(like.channels, step.module.out_channels, like.height, like.width, stride=stride)
        self._layer(step, step.module, geometry, name, view)

    def _relu(self, step: Step) -> None:
        name, view = self._view(step)
        if view.activation not in ("", "relu") or (not view.raw and self.uses[name] > 1):
            view = View([Term(self._store(name))])
        self.views[step.name] = View(view.terms, "relu")

    def _curve(self, step: Step) -> None:
        """An activation that is no ReLU."""
        name, view = self._view(step)
        lazy = view.raw or (len(view.terms) == 1 and not view.activation and self.uses[name] == 1)
        self.views[step.name] = View(view.terms if lazy else [Term(self._store(name))], step.activation)

    def _once(self, name: str, view: View) -> View:
        """A view that one reader evaluates; what others read too is stored first."""
        return view if view.raw or self.uses[name] == 1 else View([Term(self._store(name))])

    def _noise(self, step: Step) -> None:
        name, view = self._view(step)
        view = self._once(name, view)
        assert step.draw is not None
        noise, out = (Buffer(view.like.channels, view.like.height, view.like.width) for _ in range(2))
        self.program.ops.append(Noise(step.draw, noise))  # now: random numbers come in the order of the steps
        op = self.maker[out] = Pass(view, out=out, noise=noise)
        self.program.ops.append(op)
        self.views[step.name] = View([Term(out)])

    def _window(self, step: Step) -> None:
        name, view = self._view(step)
        like, frame = view.like, step.frame
        assert frame is not None
        sizes = zip((like.height, like.width), frame.kernel, frame.pad, strict=True)
        height, width = ((size + 2 * pad - kernel) // frame.stride + 1 for size, kernel, pad in sizes)
        if height < 1 or width < 1:
            raise ValueError("input smaller than the window")
        made = None
        if not view.raw and (self.uses[name] > 1 or len(view.terms) > 1):
            made = view.made = Buffer(like.channels, like.height, like.width)
        out = Buffer(like.channels, height, width)
        self.program.ops.append(Window(frame, view, out, made))
        self.views[step.name] = View([Term(out)])

    def _cat(self, step: Step) -> None:
        names = [self._real(name) for name in step.inputs]
        if len(set(names)) < len(names):
            raise ValueError("a value put beside itself")
        views = [self._once(name, self._view(step, which)[1]) for which, name in enumerate(names)]
        if len({(v.like.height, v.like.width) for v in views}) > 1:
            raise ValueError("shapes do not match")
        out = Buffer(sum(v.like.channels for v in views), views[0].like.height, views[0].like.width)
        self.program.ops.append(Cat(views, out))
        self.views[step.name] = View([Term(out)])

    def _layer_norm(self, step: Step) -> None:
        assert isinstance(step.module, nn.LayerNorm)
        source = self._store(self._real(step.inputs[0]))
        if step.module.normalized_shape != (source.channels,):
            raise ValueError("channels do not match")
        out = Buffer(source.channels, source.height, source.width)
        self.program.ops.append(LayerNorm(step.module, source, out))
        self.views[step.name] = View([Term(out)])

    def _add(self, step: Step) -> None:
        if step.inputs[0] == step.inputs[1]:
            raise ValueError("a value added to itself")
        names = [self._real(name) for name in step.inputs]
        views = [self._view(step, which)[1] for which in (0, 1)]
        for mine, other in ((0, 1), (1, 0)):
            if self._joins(names[mine], views[mine], views[other]):
                return self._join(step, views[mine].like, views[other].like)
        terms = []
        for name, view in zip(names, views, strict=True):
            lazy = len(view.terms) == 1 and not view.activation and (view.raw or self.uses[name] == 1)
            terms += view.terms if lazy else [Term(self._store(name))]
        shapes = [(t.buffer.channels, t.buffer.height, t.buffer.width) for t in terms]
        if shapes[0] != shapes[1]:
            raise ValueError("shapes do not match")
        self.views[step.name] = View(terms)
        return None

    def _joins(self, name: str, mine: View, other: View) -> bool:
        """Whether `mine` is the last convolution's raw result, so that it can add `other` as it stores."""
        last = self.program.ops[-1]
        return (
            mine.raw
            and other.raw
            and self.uses[name] == 1
            and isinstance(last, Conv)
            and not last.dense
            and last.out is mine.like
            and (mine.like.channels, mine.like.height, mine.like.width)
            == (other.like.channels, other.like.height, other.like.width)
        )

    def _join(self, step: Step, out: Buffer, add: Buffer) -> None:
        last = self.program.ops[-1]
        assert isinstance(last, Conv)
        last.add = add
        self.views[step.name] = View([Term(out)])

    def _pool(self, step: Step) -> None:
        name, view = self._view(step)
        made = None
        if not view.raw and (self.uses[name] > 1 or len(view.terms) > 1):
            made = view.made = Buffer(view.like.channels, view.like.height, view.like.width)
        if step.name not in self.region.outputs:
            raise ValueError("a pooled value must leave the region")
        position = self.region.outputs.index(step.name)
        self.program.keepdim[position] = step.keepdim
        self.program.ops.append(Pass(view, out=made, position=position))
        self.views[step.name] = View([])
