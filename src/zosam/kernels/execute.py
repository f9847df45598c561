"""A region at work: programs per input size, memory on lease, and one autograd function over all of it."""

from __future__ import annotations

import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zosam.optim.vector import masks_by_weight

from .build import NotFinite
from .lower import Run, Script, Writer
from .memory import Memory
from .operations.convolution import Conv
from .operations.edges import RANKS, as_given, as_image, no_view
from .operations.index import pixel_row
from .operations.norms import uses_running_statistics
from .plan import Adjoint, Forward, Planner
from .regions import Layers, Region

LAST = torch.channels_last
KEPT_SIZES = 4
FEW = 2.0  # vectors hold pixels where they are so many times as full as with pictures: they are read at any address


class Unsupported(Exception):
    """This input cannot go through the kernels; the caller runs the model as it was."""


class Lease:
    """Memory and calls of one program, for one run at a time."""

    def __init__(self, program: Program) -> None:
        self.program, owner = program, program.owner
        ops, backward = program.forward.ops, program.adjoint
        memory = Memory(owner.lib, ops, backward, program.images, program.pixels)
        self.writer = Writer(memory, owner.layers, owner.keys, program.layout)
        self.inputs, self.outputs = len(owner.region.inputs), len(owner.region.outputs)
        self.forward = self.writer.script_of(ops, self.inputs, self.outputs)
        self.departures = self.writer.departures  # shapes and layouts of the outputs
        self.backwards: dict[str, Script] = {}

    def backward(self, gradient_of: str) -> Script:
        """The calls of the backward program."""
        if gradient_of not in self.backwards:
            ops = self.program.adjoint or []
            self.backwards[gradient_of] = self.writer.script_of(ops, self.outputs, self.inputs, gradient_of)
            self.input_gradients = self.writer.departures
        return self.backwards[gradient_of]


class Holder:
    """Keeps a lease for as long as a graph may need it, and gives it back to its program."""

    def __init__(self, program: Program) -> None:
        self.lease = program.free.pop() if program.free else Lease(program)

    def __del__(self) -> None:
        self.lease.program.free.append(self.lease)


class Program:
    """A lowered region for one input size, with or without its adjoint."""

    def __init__(self, owner: KernelRegion, inputs: Sequence[Tensor], wanted: tuple[bool, ...] | None) -> None:
        self.owner = owner
        self.layout = torch.channels_last if owner.last(inputs) else torch.contiguous_format
        self.images = inputs[0].shape[0]
        self.forward = owner.planned(inputs)
        self.adjoint = None if wanted is None else Adjoint(self.forward, wanted).build()
        self.pixels = wanted is None and owner.few(self.images, self.forward)
        self.free: list[Lease] = []


class KernelRegion:
    """Runs a region on the kernels; called like the nodes that it stands for, or raises Unsupported."""

    def __init__(self, layers: Layers, region: Region) -> None:
        self.lib, self.layers, self.region, self.kind = layers.lib, layers, region, region.kind
        self.dense: set[nn.Module] = set()  # layers that stay in torch
        self.modules = [step.module for step in region.steps if step.module is not None]
        self.keys = [(m, name) for m in self.modules for name, _ in m.named_parameters(recurse=False)]
        self.norms = [m for m in self.modules if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        self.fits_pixels = self.kind == "image" and all(s.kind != "noise" for s in region.steps)
        self.lock = threading.RLock()
        self.warned = False
        self.programs: OrderedDict[Any, Program] = OrderedDict()

    def few(self, images: int, program: Forward) -> bool:
        """Whether vectors of pixels are that much fuller than vectors of pictures would be; forward only."""
        if not self.fits_pixels or not all(map(uses_running_statistics, self.norms)):
            return False
        lanes = self.lib.lanes
        rows = [(op.geometry, self.layers.density(op.module)) for op in program.ops if isinstance(op, Conv)]
        work = [(density * math.prod(g.weight) * g.out_height, g.out_width) for g, density in rows]
        pixels = sum(each * width for each, width in work)
        room = sum(each * pixel_row(width, lanes) for each, width in work)
        return pixels * (-(-images // lanes) * lanes) >= FEW * images * room

    def last(self, inputs: Sequence[Tensor]) -> bool:
        """Whether outputs leave with the channels of a pixel side by side: as they come, or the first weight lies."""
        weight = self.modules[0]._parameters.get("weight") if self.modules else None
        return _is_last(inputs[0]) or (weight is not None and weight.dim() == 4 and _is_last(weight))

    def planned(self, inputs: Sequence[Tensor]) -> Forward:
        """The forward program for these pictures."""
        sizes = [(x.shape[1], x.shape[2], x.shape[3]) for x in inputs]
        return Planner(self.region, sizes, self.dense).build()

    def shaped(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The inputs as pictures."""
        return inputs if self.kind == "image" else [as_image(x, self.kind) for x in inputs]

    def __call__(self, *inputs: Tensor) -> Any:
        parameters = self.ready(inputs)
        if self.layers.serving and torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            raise Unsupported("gradients of weights whose zeros are the pattern")
        if torch.is_grad_enabled():
            outputs = _RegionFunction.apply(self, len(inputs), *inputs, *parameters)  # type: ignore[no-untyped-call]
        else:
            outputs, _ = self.forward(inputs, parameters, None)
        return outputs[0] if len(outputs) == 1 else outputs

    def forward(
        self, inputs: Sequence[Tensor], parameters: Sequence[Tensor], wanted: tuple[bool, ...] | None
    ) -> tuple[tuple[Tensor, ...], Holder]:
        """Outputs, and what holds the activations; `wanted`: which inputs need a gradient; None: no backward."""
        with self.lock, torch._C.DisableTorchFunction():  # a mode of the caller's has nothing to see here
            lead, inputs = inputs[0].shape[:-1], self.shaped(inputs)
            holder = Holder(self._program(inputs, wanted))
            script = holder.lease.forward
            stray = script.follow(parameters)
            if stray is not None and self.layers.serving:
                self.layers.renew()
                stray = script.follow(parameters)
            if stray is not None:
                raise Unsupported(self._stray(script.layers[stray].pattern.module))
            outputs = tuple([torch.empty(s, memory_format=layout) for s, layout in holder.lease.departures])
            try:
                script.make(Run(inputs, outputs, parameters, (), self.kind, lead))
            except NotFinite:  # zero times that is not zero, but a pruned weight does not multiply
                raise Unsupported("an input that is not finite") from None
            if self.kind != "image":
                outputs = tuple(no_view(as_given(y, self.kind, lead)) for y in outputs)
        return outputs, holder

    def _program(self, inputs: Sequence[Tensor], wanted: tuple[bool, ...] | None) -> Program:
        """The program for these input sizes; the least recently used one makes room."""
        key = (*[x.shape for x in inputs], wanted, self.last(inputs), *[norm.training for norm in self.norms])
        program = self.programs.get(key)
        if program is None:
            try:
                program = self.programs[key] = Program(self, inputs, wanted)
            except (ValueError, OverflowError) as error:
                raise Unsupported(str(error)) from error
            while len(self.programs) > KEPT_SIZES:
                self.programs.popitem(last=False)
        self.programs.move_to_end(key)
        return program

    def _stray(self, module: nn.Module) -> str:
        """Why a layer does not run on the kernels now; said once if weights do not fit their mask."""
        if self.layers.mask(module) is None:
            return "a mask that was let go"
        if not self.warned:
            self.warned = True
            name = self.layers.names.get(id(module._parameters["weight"]), "")
            warnings.warn(
                f"{name}: weights that its mask prunes are not zero, so the model runs as before, dense, until they"
                " are. Load weights before masks, or multiply them by their masks",
                RuntimeWarning, stacklevel=9,
            )  # fmt: skip
        return "weights that do not fit their mask"

    def gradient_of(self) -> str:
        """Of which weights the coming step needs the gradient: active ones, some more, or all."""
        weights = [m._parameters["weight"] for m in self.modules if m._parameters.get("weight") is not None]
        masks = [m for m in masks_by_weight(weights) if m is not None]  # type: ignore[arg-type]
        if not self.layers.own.issuperset(map(id, masks)):
            return "all"  # another method keeps them by now, and may look at it
        asks = getattr(self.layers.sparse, "needs_dense_gradient", None)
        return self.layers.gradient_of() if asks is not None and asks() else "active"

    def ready(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The parameters, dense in memory; Unsupported is raised unless the kernels can take them and these inputs."""
        rank = RANKS.get(self.kind)
        sides = 1 if rank else -1  # how many axes must agree
        for x in inputs:
            if not isinstance(x, Tensor) or (type(x) is not Tensor and not _holds_data(x)):
                raise Unsupported("an input that is no plain tensor")
            if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() == 0:
                raise Unsupported("an input that is empty, or not float32 on the CPU")
            if x.dim() != rank if rank else x.dim() < 2:
                raise Unsupported("an input of another rank")
            if x.shape[:sides] != inputs[0].shape[:sides]:
                raise Unsupported("inputs of different sizes")
        parameters: list[Tensor] = []
        for module, name in self.keys:
            p = module._parameters.get(name)  # as getattr would find it, in less time; None if it is made of others now
            if p is None or p.dtype is not torch.float32 or not p.is_cpu:
                raise Unsupported(f"a {name} that is not float32 on the CPU")
            if type(p) is not nn.Parameter and not _holds_data(p):
                raise Unsupported(f"a {name} that is no plain tensor")
            # a view with gaps is copied: index and gradient rely on the strides
            parameters.append(p if p.is_contiguous() or p.is_contiguous(memory_format=LAST) else p.contiguous())
        if inputs[0].shape[0] < 2:
            for norm in self.norms:
                if norm.training:
                    raise Unsupported("batch norm of one image")
        return parameters


def _is_last(x: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side."""
    return x.stride(1) == 1 and not x.is_contiguous()


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
        outputs, holder = owner.forward(inputs, parameters, needed[:count] if any(needed) else None)
        if any(needed):
            ctx.save_for_backward(*parameters)
            ctx.owner, ctx.count, ctx.holder, ctx.lead = owner, count, holder, inputs[0].shape[:-1]
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        owner, lease, parameters = ctx.owner, ctx.holder.lease, ctx.saved_tensors
        pooled = lease.program.forward.pooled
        given = [g.float() for g in gradients]
        arrivals = [g.contiguous() if i in pooled else as_image(g, owner.kind) for i, g in enumerate(given)]
        needed = ctx.needs_input_grad[2:]
        own = [torch.zeros_like(p) if n else None for p, n in zip(parameters, needed[ctx.count :], strict=True)]
        with owner.lock:
            script = lease.backward(owner.gradient_of())
            script.follow(parameters)
            of_inputs = [torch.empty(s, memory_format=f) if s else None for s, f in lease.input_gradients]
            script.make(Run(arrivals, of_inputs, parameters, own))
            script.left_masked(parameters, own)
        plain = [None if x is None else as_given(x, owner.kind, ctx.lead) for x in of_inputs]
        return (None, None, *plain, *own)
