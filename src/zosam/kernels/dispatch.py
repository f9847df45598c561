"""What stands in the place of a module's forward: the kernels where they gain, its own code elsewhere."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from .choose import FEW_IMAGES, WORTH_IT, Case, Choices, settle, whole_ratio, written_down
from .execute import KernelRegion, Unsupported
from .regions import Layers, Region, alone, regions, splice
from .timing import times
from .trace import Inputs, by_place, in_order, same, trace

LEAVES = {nn.Conv1d, nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.Embedding}
NEAR = 2.0  # batch sizes that differ by no more than this factor share a choice


class Switch(nn.Module):
    """Calls a region on the kernels, or node by node where they cannot take the input or would be slower."""

    def __init__(self, kernels: KernelRegion, plain: GraphModule, place: str) -> None:
        super().__init__()
        self.kernels, self.plain, self.place = kernels, plain, place
        self.wins, self.why = True, "torch is faster"
        self.ratio: float | None = None  # time in torch / on the kernels, if it was measured now
        self.key = ""  # of that measurement

    def forward(self, *inputs: Tensor) -> Any:
        if self.wins:
            try:
                return self.kernels(*inputs)
            except Unsupported:
                pass
        return self.plain(*inputs)

    @property
    def title(self) -> str:
        """From where to where it goes in the traced module."""
        steps = self.kernels.region.steps
        return f"{steps[0].name} to {steps[-1].name}"

    @property
    def choice(self) -> list[str] | None:
        """The layers that stay dense, by name; None if torch runs them all."""
        dense = self.kernels.dense
        return [s.name for s in self.kernels.region.steps if s.module in dense] if self.wins else None

    def choose(self, dense: list[str] | None) -> None:
        self.wins = dense is not None
        self.kernels.dense = {s.module for s in self.kernels.region.steps if s.module and s.name in (dense or ())}

    def weights(self, sparse: bool = False) -> list[nn.Parameter | None]:
        """The weights of its layers; with `sparse`, of those that the kernels multiply."""
        layers = [s.module for s in self.kernels.region.steps if s.multiplies and s.module]
        dense = self.kernels.dense if self.wins else layers
        return [m._parameters["weight"] for m in layers if not (sparse and m in dense)]

    def describe(self) -> str:
        layers = [s for s in self.kernels.region.steps if s.multiplies]
        dense = sum(s.module in self.kernels.dense for s in layers)
        way = f"{len(layers) - dense} of {len(layers)} layers on the kernels" if self.wins else self.why
        return f"{self.place}: {way}"


@dataclass
class Rewritten:
    """The graph to run, and its regions."""

    graph: GraphModule
    switches: list[Switch]
    case: Case
    ratio: float | None  # time of the whole module in torch / so, if it was measured now

    @cached_property
    def arguments(self) -> dict[str, None]:
        """The names of what the graph takes."""
        return {str(node.target): None for node in self.graph.graph.nodes if node.op == "placeholder"}

    def describe(self) -> dict[str, str]:
        """Of each region what runs where, and how many times as fast that was measured to be."""
        gain = {s: f"{times(s.ratio)} times as fast" if s.ratio and s.wins else "" for s in self.switches}
        return {switch.describe(): text for switch, text in gain.items()}


def rewrite(
    module: nn.Module,
    own: Callable[..., Any],
    layers: Layers,
    case: Case,
    choices: Choices,
    before: Callable[[Sequence[Any]], object],
) -> Rewritten | None:
    """The module with its regions on the kernels, or None if that does not gain.

    `own` is its own forward, and `before` is called at every pass that might go the other way.
    """
    graph = trace(module, len(case.example))
    if graph is None:
        return None
    found = regions(graph, lambda m: layers.mask(m) is not None)
    nodes = {node.name: node for node in graph.graph.nodes}
    switches = [Switch(KernelRegion(layers, region), alone(graph, region), _place(region, nodes)) for region in found]
    for region, switch in zip(found, switches, strict=True):
        splice(graph, region, switch, nodes)
    graph.recompile()
    known = all(case.title(switch) in choices for switch in switches)
    settle(graph, switches, case, choices)
    wins = any(switch.wins for switch in switches)
    right = not wins or same(module, own, graph, case.first(FEW_IMAGES).samples())
    for switch in switches:
        why = switch.why if right else "its trace computes something else"
        layers.why.update((w, why) for w in switch.weights() if w is not None)
    if not right:
        warnings.warn("the traced model computes something else, so it runs as before", RuntimeWarning, stacklevel=5)
    if not (wins and right):
        return None
    for switch in switches:
        switch.kernels.programs.clear()  # their memory: training makes its own
    ratio = None if known else whole_ratio(module, own, graph, switches, case, before)
    if ratio is not None and ratio < WORTH_IT:
        choices.update({case.title(switch): None for switch in switches})
        return None
    return Rewritten(graph, switches, case, ratio)


def _place(region: Region, nodes: Mapping[str, Node]) -> str:
    """From which module of the model to which a region goes, by the names that the user knows them by."""
    calls = [nodes[step.name] for step in region.steps if step.multiplies] or [nodes[s.name] for s in region.steps]
    first, last = (str(call.target) if call.op == "call_module" else call.name for call in (calls[0], calls[-1]))
    return first if first == last else f"{first} to {last}"


class Dispatcher:
    """Called as the module's forward; keeps one rewritten graph for each setting of the training flags and batch size.

    A batch size far from all that were measured is measured when it first comes, if `measures`; else it goes the way
    of the nearest.
    """

    def __init__(self, module: nn.Module, layers: Layers, examples: Inputs, choices: Choices, measures: bool) -> None:
        self.module, self.layers, self.choices, self.measures = module, layers, choices, measures
        shapes = [tuple((x.shape, x.dtype) for x in args) for args in examples]
        self.sizes = {_first(shape): shape for shape in reversed(shapes)}
        self.goes_by: dict[int, int] = {}  # the size that a batch size goes by
        self.own: Callable[..., Any] | None = module.__dict__.get("forward")
        self.__signature__ = inspect.signature(self.own or module.forward)  # exporters ask for both
        self.names = by_place(self.__signature__)
        self.__code__ = getattr(self.own or type(module).forward, "__code__", None)
        self.inner = [m for m in module.modules() if m is not module]
        self.structure = [(m, dict(m._modules)) for m in module.modules() if m._modules]
        own = [m for m in module.modules() if not m.__module__.startswith("torch.nn") or isinstance(m, nn.Dropout)]
        self.steered = [module, *own]
        bare = [m for m in module.modules() if type(m) not in LEAVES]  # whose tensors may stand in the graph themselves
        held = [(which, dict(which)) for m in bare for which in (m._parameters, m._buffers)]
        self.held = [(now, then) for now, then in held if then]
        self.ranks = [len(shape) for shape, _ in shapes[0]]
        self.versions: dict[tuple[Any, ...], Rewritten | None] = {}
        self.lost: set[tuple[bool, int]] = set()  # training and size where the module's own code is faster

    def version(self, batch: int) -> Rewritten | None:
        """The rewritten graph for the present training flags, on which a module's own code may depend, and batch size.

        None if the module's own code is faster.
        """
        training, size = self.module.training, self._size(batch)
        key = (training, size, *[m.training for m in self.steered])
        if key not in self.versions:
            case = Case(self.sizes[size], backward=training)
            with torch.inference_mode(False), written_down():
                self.versions[key] = rewrite(self.module, self.original, self.layers, case, self.choices, self.is_plain)
            if self.versions[key] is None and all(m.training == training for m in self.steered):
                self.lost.add((training, size))
        return self.versions[key]

    def _size(self, batch: int) -> int:
        """The measured size by which this one goes."""
        size = self.goes_by.get(batch)
        if size is None:
            size = min(self.sizes, key=lambda n: max(batch / max(n, 1), n / max(batch, 1)))
            if self.measures and batch > 0 and not 1 / NEAR <= batch / max(size, 1) <= NEAR:
                shape = self.sizes[size]
                new = tuple((torch.Size((batch, *s[1:])) if s and s[0] == size else s, d) for s, d in shape)
                size, self.sizes[batch] = batch, new
            self.goes_by[batch] = size
        return size

    def gains(self) -> bool:
        """Whether the kernels are worth it in training or in evaluation; what is chosen for both is then known."""
        modes = [(m, m.training) for m in self.module.modules()]
        try:
            for mode in (False,) if self.layers.serving else (True, False):
                self.module.train(mode)
                for batch in list(self.sizes):
                    self.version(batch)
        finally:
            for module, training in modes:
                module.training = training
        return any(version is not None for version in self.versions.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # to look a batch size up would fix it
            return self.original(*args, **kwargs)
        if kwargs:
            ordered = in_order(self.names, args, kwargs)
            taken = self.names[len(args) : len(ordered)]
            args, kwargs = ordered, {k: v for k, v in kwargs.items() if k not in taken}
        batch = args[0].shape[0] if args and isinstance(args[0], Tensor) and args[0].dim() else 1
        if (self.module.training, self.goes_by.get(batch, -1)) in self.lost or self.is_plain(args):
            return self.original(*args, **kwargs)
        version = self.version(batch)
        if version is None:
            return self.original(*args, **kwargs)
        count, names = len(version.arguments), version.arguments
        if len(args) > count or not kwargs.keys() <= names.keys():  # what the graph does not know must not be given
            if any(v is not None and v is not False for v in (*args[count:], *kwargs.values())):
                return self.original(*args, **kwargs)
            args, kwargs = args[:count], {}
        return version.graph(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def is_plain(self, args: Sequence[Any]) -> bool:
        """Whether something is going on that only the module's own code serves: hooks, autocast, transforms."""
        if len(args) < len(self.ranks) or torch.is_autocast_enabled("cpu") or torch._C._get_tracing_state() is not None:
            return True
        for x, rank in zip(args, self.ranks, strict=False):
            if not isinstance(x, Tensor) or x.dim() != rank or torch._C._functorch.is_functorch_wrapped_tensor(x):
                return True
        for parent, parts in self.structure:
            if parent._modules != parts:  # a layer was replaced after the model was accelerated
                return True
        for now, then in self.held:
            for name, tensor in then.items():
                if now.get(name) is not tensor:  # another tensor was put in its place
                    return True
        for m in self.inner:
            if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
                return True
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copied model has its own parameters: it runs its own code until it is accelerated itself."""
        return _bind(type(self.module).forward, memo.get(id(self.module), self.module))

    def __reduce__(self) -> tuple[Any, ...]:
        return _bind, (type(self.module).forward, self.module)


def _bind(function: Callable[..., Any], module: nn.Module) -> Any:
    """A method that pickle can make: a loaded model runs its own code, as a copied one does."""
    return types.MethodType(function, module)


def _first(shape: tuple[tuple[torch.Size, torch.dtype], ...]) -> int:
    """The batch size of inputs of these shapes."""
    return int(shape[0][0][0]) if shape and shape[0][0] else 0
