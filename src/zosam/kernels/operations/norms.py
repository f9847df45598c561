"""Batch norm, which its readers apply as they read, and layer norm, which stores its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ..build import BATCH_NORM_BACKWARD, BATCH_NORM_FORWARD, LAYER_NORM, structure
from ..lower import THREADS
from ..memory import VECTORS, Memory
from .base import Buffer, GradientSink, Op, Part, Step, Term, Traffic, View, given
from .elementwise import Pass

if TYPE_CHECKING:
    from ..lower import Writer
    from ..plan import Adjoint, Planner

BatchNormCall = structure(
    "BatchNorm",
    integers="images channels area batch_statistics",
    doubles="eps momentum",
    pointers="gamma beta running_mean running_var mean rstd scale shift gz gb",
)
LayerNormCall = structure(
    "LayerNorm",
    integers="images channels area plane",
    doubles="eps",
    pointers="x gamma beta out gradient add gamma_gradient beta_gradient",
)


def of_module(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d):
        return BatchNormStep(name, inputs, module, on="line" if type(module) is nn.BatchNorm1d else "image")
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        return LayerNormStep(name, inputs, module, on="rows")
    return None


def uses_running_statistics(norm: nn.Module) -> bool:
    """Whether it takes no notice of the batch."""
    return not norm.training and norm._buffers["running_mean"] is not None


class BatchNormStep(Step):
    kind = "batch_norm"
    learns = True

    def plan(self, planner: Planner) -> None:
        assert isinstance(self.module, nn.BatchNorm1d | nn.BatchNorm2d)
        buffer = planner.store(self.inputs[0])
        norm = BatchNorm(self.module, buffer, None)
        if not uses_running_statistics(self.module):
            maker = planner.maker.get(buffer)
            if maker is None:  # nobody who could sum on the way
                maker = planner.maker[buffer] = Pass(View([Term(buffer)]))
                planner.add(maker)
            if maker.sums is None:
                maker.sums = buffer.statistics()
            norm.sums = maker.sums
        planner.add(norm)
        planner.views[self.name] = View([Term(buffer, norm)])


@dataclass(eq=False)
class BatchNorm(Op):
    """Batch norm of a buffer: from its sums to a scale and a shift per channel."""

    module: nn.BatchNorm1d | nn.BatchNorm2d
    buffer: Buffer
    sums: Buffer | None  # None if it uses its running statistics

    def traffic(self) -> Traffic:
        return Traffic(reads=given(self.sums))

    def backward(self, sums: Buffer) -> BatchNormBack:
        return BatchNormBack(self, sums)

    def call(self, memory: Memory) -> Any:
        """The C view, the same one forward and backward."""
        if self not in memory.norms:
            channels, height, width = self.buffer.size
            vectors = {name: memory.vector(self, name) for name in VECTORS}
            memory.norms[self] = BatchNormCall(
                images=memory.images, channels=channels, area=height * width, **vectors
            )  # fmt: skip
        return memory.norms[self]

    def write(self, to: Writer, backwards: int) -> None:
        call = self.call(to.memory)
        to.script.fill(call, "gamma", to.parameter(self.module, "weight"))
        to.script.fill(call, "beta", to.parameter(self.module, "bias"))
        to.script.norms.append((call, self.module))
        to.script.add(BATCH_NORM_FORWARD, call, to.memory.at(self.sums or self.buffer))


@dataclass(eq=False)
class BatchNormBack(Op):
    """From sums to the gradients of gamma and beta, and to what a Part through this norm needs."""

    norm: BatchNorm
    sums: Buffer

    def traffic(self) -> Traffic:
        return Traffic(reads=[self.sums])

    def write(self, to: Writer, backwards: int) -> None:
        wanted = (to.gradient(self.norm.module, name) for name in ("weight", "bias"))
        to.script.add(BATCH_NORM_BACKWARD, self.norm.call(to.memory), to.memory.at(self.sums), *wanted)


class LayerNormStep(Step):
    kind = "layer_norm"
    learns = True

    def plan(self, planner: Planner) -> None:
        assert isinstance(self.module, nn.LayerNorm)
        source = planner.store(self.inputs[0])
        if self.module.normalized_shape != (source.channels,):
            raise ValueError("channels do not match")
        out = source.another()
        planner.put(self, LayerNorm(self.module, source, out), out)


@dataclass(eq=False)
class LayerNorm(Op):
    """Layer norm: every row of the source by its own mean and spread."""

    module: nn.LayerNorm
    source: Buffer
    out: Buffer

    def traffic(self) -> Traffic:
        return Traffic([self.source], [self.out], [(self.out, self.source)])

    def differentiate(self, adjoint: Adjoint) -> None:
        parts = adjoint.take(self.out)
        if parts:
            adjoint.ops.append(LayerNormBack(self, parts, adjoint.joining(self.source)))

    def call(self, to: Writer, **more: int) -> Any:
        """The C view."""
        images, channels, height, width, plane = to.memory.extent(self.source)
        x, eps = to.memory.at(self.source), self.module.eps
        found = LayerNormCall(images=images, channels=channels, area=height * width, plane=plane, eps=eps, x=x, **more)
        to.script.fill(found, "gamma", to.parameter(self.module, "weight"))
        return found

    def write(self, to: Writer, backwards: int) -> None:
        call = self.call(to, out=to.memory.at(self.out))
        to.script.fill(call, "beta", to.parameter(self.module, "bias"))
        to.script.add(LAYER_NORM, call, THREADS)


@dataclass(eq=False)
class LayerNormBack(Op):
    """Gradients of a layer norm's rows, gamma and beta; the sink adds what is already known of the rows'."""

    norm: LayerNorm
    parts: list[Part]
    sink: GradientSink

    def traffic(self) -> Traffic:
        return self.sink.traffic(self.parts, into=self.sink.out)

    def write(self, to: Writer, backwards: int) -> None:
        call = self.norm.call(to, out=to.memory.at(self.sink.out), add=to.memory.at(self.sink.add))
        to.script.point(call, gradient=to.memory.gradient(self.parts))
        to.script.fill(call, "gamma_gradient", to.gradient(self.norm.module, "weight"))
        to.script.fill(call, "beta_gradient", to.gradient(self.norm.module, "bias"))
        to.script.add(LAYER_NORM, call, THREADS)
