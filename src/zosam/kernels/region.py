"""A region at work: programs per input size, memory on lease, and one autograd function over all of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import run_backward, run_forward
from .adjoint import Adjoint
from .bound import Memory, Run
from .graph import Region
from .layers import Layers
from .library import Calls, Library
from .lowering import Lowering
from .plan import Forward

HIGH, WIDE = 2, 4  # rows of a linear layer's input lie side by side like these pixels: just one register tile
ROWS = HIGH * WIDE
LAST = torch.channels_last
KEPT_SIZES = 4


class Unsupported(Exception):
    """This input cannot go through the kernels; the caller runs the model as it was."""


class Lease:
    """Memory and calls of one program; returns to its program when nobody holds it any more."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = Memory(program.lib, program.layers, program.forward, program.images, program.adjoint)
        self.forward = run_forward.calls(self.memory, program.forward)
        self.backward = run_backward.calls(self.memory, program.adjoint or [])


class Holder:
    """Keeps a lease for as long as a graph may need it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def __del__(self) -> None:
        self.lease.program.free.append(self.lease)


class Program:
    """A lowered region for one input size, with or without its adjoint."""

    def __init__(self, owner: KernelRegion, shapes: Sequence[torch.Size], wanted: tuple[bool, ...] | None) -> None:
        self.lib, self.layers = owner.lib, owner.layers
        self.images, sizes = owner.geometry(shapes)
        self.forward: Forward = Lowering(owner.region, sizes, owner.dense).lower()
        self.adjoint = None if wanted is None else Adjoint(self.forward, wanted).build()
        self.free: list[Lease] = []

    def lease(self) -> Holder:
        return Holder(self.free.pop() if self.free else Lease(self))


class KernelRegion:
    """Runs a region on the kernels; called like the nodes that it stands for, or raises Unsupported."""

    def __init__(self, lib: Library, layers: Layers, region: Region, dense: set[nn.Module]) -> None:
        self.lib, self.layers, self.region, self.dense = lib, layers, region, dense
        self.modules = [step.module for step in region.steps if step.module is not None]
        self.keys = [(m, name) for m in self.modules for name, _ in m.named_parameters(recurse=False)]
        self.lock = threading.RLock()
        self.programs: OrderedDict[Any, Program] = OrderedDict()

    def geometry(self, shapes: Sequence[torch.Size]) -> tuple[int, list[tuple[int, int, int]]]:
        """Images, and (channels, height, width) per input."""
        if self.region.kind == "rows":
            return -(-shapes[0][:-1].numel() // ROWS), [(s[-1], HIGH, WIDE) for s in shapes]
        return shapes[0][0], [(s[1], s[2], s[3]) for s in shapes]

    def program(self, shapes: tuple[torch.Size, ...], wanted: tuple[bool, ...] | None) -> Program:
        """The program for these input sizes; the least recently used one makes room."""
        key = (shapes, wanted)
        if key not in self.programs:
            try:
                self.programs[key] = Program(self, shapes, wanted)
            except (ValueError, OverflowError) as error:
                raise Unsupported(str(error)) from error
            while len(self.programs) > KEPT_SIZES:
                self.programs.popitem(last=False)
        self.programs.move_to_end(key)
        return self.programs[key]

    def lowered(self, inputs: Sequence[Tensor]) -> tuple[int, Forward]:
        """Images and forward program for these inputs."""
        images, sizes = self.geometry([x.shape for x in inputs])
        return images, Lowering(self.region, sizes, self.dense).lower()

    def __call__(self, *inputs: Tensor) -> Any:
        parameters = self.ready(inputs)
        shaped = [self._enter(x) for x in inputs]
        if torch.is_grad_enabled():
            outputs = _RegionFunction.apply(self, len(inputs), *shaped, *parameters)  # type: ignore[no-untyped-call]
        else:
            outputs, _ = self.forward(shaped, parameters, None)
        outputs = tuple(self._leave(y, inputs[0]) for y in outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def forward(
        self, inputs: Sequence[Tensor], parameters: Sequence[Tensor], wanted: tuple[bool, ...] | None
    ) -> tuple[tuple[Tensor, ...], Holder]:
        """Outputs, and what holds the activations; `wanted`: which inputs need a gradient; None: no backward."""
        with self.lock, torch._C.DisableTorchFunction():  # a mode of the caller's has nothing to see here
            shapes = tuple(x.shape for x in inputs)
            if self.region.kind == "rows":
                shapes = tuple(torch.Size((x.shape[0] * ROWS, x.shape[1])) for x in inputs)
            holder = self.program(shapes, wanted).lease()
            run = Run(Calls(self.lib), dict(zip(self.keys, parameters, strict=True)), list(inputs))
            for call in holder.lease.forward:
                call(run)
            run.calls.make()
            if run.counted:
                torch._foreach_add_(run.counted, 1)
        return tuple(y for _, y in sorted(run.outputs.items())), holder

    def _enter(self, x: Tensor) -> Tensor:
        """Rows as pixels of small images; missing rows are zero, so nothing comes from them."""
        if self.region.kind == "image":
            return x
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] % ROWS:
            rows = nn.functional.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS))
        return rows.view(-1, HIGH, WIDE, x.shape[-1]).permute(0, 3, 1, 2)

    def _leave(self, y: Tensor, x: Tensor) -> Tensor:
        if self.region.kind == "image":
            return y
        rows = y.permute(0, 2, 3, 1).reshape(-1, y.shape[1])
        return rows[: x.shape[:-1].numel()].view(*x.shape[:-1], y.shape[1])

    def ready(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The parameters, dense in memory; Unsupported is raised unless the kernels can take them and these inputs."""
        rank = 4 if self.region.kind == "image" else 2
        for x in inputs:
            if not isinstance(x, Tensor) or not _holds_data(x):
                raise Unsupported("input")
            if x.shape[: 1 if rank == 4 else -1] != inputs[0].shape[: 1 if rank == 4 else -1]:
                raise Unsupported("inputs of different sizes")
            if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() == 0 or x.dim() < rank:
                raise Unsupported("input")
            if x.dim() != 4 and self.region.kind == "image":
                raise Unsupported("input")
        parameters: list[Tensor] = []
        for m, name in self.keys:
            p = m._parameters[name]  # as getattr would find it, in less time
            if p is None or p.dtype is not torch.float32 or not p.is_cpu or not _holds_data(p):
                raise Unsupported(name)
            # a view with gaps is copied: index and gradient rely on the strides
            parameters.append(p if p.is_contiguous() or p.is_contiguous(memory_format=LAST) else p.contiguous())
        if inputs[0].shape[0] < 2 and any(isinstance(m, nn.BatchNorm2d) and m.training for m in self.modules):
            raise Unsupported("one image")
        return parameters


def _holds_data(tensor: Tensor) -> bool:
    """Not so tensors that stand for others, as the shards of fully_shard do."""
    kind = type(tensor)
    return kind is nn.Parameter or kind is Tensor or kind.__torch_dispatch__ is Tensor.__torch_dispatch__


class _RegionFunction(torch.autograd.Function):
    """Forward and backward of a region; activations live in a leased arena until the graph is freed."""

    @staticmethod
    def forward(ctx: Any, owner: KernelRegion, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, parameters = tensors[:count], tensors[count:]
        needed = ctx.needs_input_grad[2:]
        outputs, holder = owner.forward(inputs, parameters, tuple(needed[:count]) if any(needed) else None)
        if any(needed):
            ctx.save_for_backward(*parameters)
            ctx.owner, ctx.count, ctx.holder = owner, count, holder
            ctx.shapes = [y.shape for y in outputs]
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        owner, count = ctx.owner, ctx.count
        parameters = ctx.saved_tensors
        run = Run(Calls(owner.lib), dict(zip(owner.keys, parameters, strict=True)))
        run.output_gradients = [
            torch.zeros(shape) if g is None else g.float() for g, shape in zip(gradients, ctx.shapes, strict=True)
        ]
        needed = ctx.needs_input_grad[2 + count :]
        run.gradients = {k: torch.zeros_like(p) for k, p, n in zip(owner.keys, parameters, needed, strict=True) if n}
        run.dense_gradient = owner.layers.dense_gradient()
        with owner.lock:
            for call in ctx.holder.lease.backward:
                call(run)
            run.calls.make()
        of_inputs = [run.input_gradients.get(i) for i in range(count)]
        return (None, None, *of_inputs, *(run.gradients.get(key) for key in owner.keys))
