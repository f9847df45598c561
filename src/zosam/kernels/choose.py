"""Which way is faster, the kernels or torch: region by region, and layer by layer inside."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from . import measure
from .execute import KernelRegion, Switch, Unsupported
from .layers import Layers
from .plan import Conv
from .regions import alone, regions, splice
from .trace import trace

Choices = dict[str, list[str] | None]  # by region: the layers that stay dense, or None for all on torch
WORTH_IT = 1.02  # what a region, and a model, must gain
MARGIN = 1.05  # a layer leaves the kernels only if torch gains more than noise
ENOUGH_IMAGES = 32  # to know the choice for more
FEW_IMAGES = 16  # to time a region, or a model


@dataclass(frozen=True)
class Case:
    """What is measured: inputs of these shapes, forward and backward as in training, or forward alone."""

    example: tuple[tuple[torch.Size, torch.dtype], ...]
    backward: bool

    @property
    def batch(self) -> int:
        shape = self.example[0][0] if self.example else ()
        return int(shape[0]) if shape else 0

    def first(self, images: int) -> Case:
        """The same with no more than so many images."""
        few = ((torch.Size((min(s[0], images), *s[1:])) if s and s[0] == self.batch else s, d) for s, d in self.example)
        return Case(tuple(few), self.backward)

    def title(self, switch: Switch) -> str:
        """The name of a region's choice."""
        return f"{switch.title}, {'training' if self.backward else 'forward'} of {self.batch}"

    def samples(self) -> list[Tensor]:
        """Random inputs of the example's shapes; zeros where it holds integers."""
        return [torch.randn(s) if d.is_floating_point else torch.zeros(s, dtype=d) for s, d in self.example]


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
        gain = {s: f"{s.ratio:.1f} times as fast" if s.ratio and s.wins else "" for s in self.switches}
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
    switches = [Switch(KernelRegion(layers.lib, layers, region, set()), alone(graph, region)) for region in found]
    nodes = {node.name: node for node in graph.graph.nodes}
    for region, switch in zip(found, switches, strict=True):
        splice(graph, region, switch, nodes)
    graph.recompile()
    known = all(case.title(switch) in choices for switch in switches)
    settle(graph, switches, case, choices)
    if not any(switch.wins for switch in switches):
        return None
    if not _same(module, own, graph, case):
        warnings.warn("the traced model computes something else, so it runs as before", RuntimeWarning, stacklevel=5)
        return None
    for switch in switches:
        switch.kernels.programs.clear()  # their memory: training makes its own
    ratio = None if known else _whole_ratio(module, own, graph, switches, case, before)
    if ratio is not None and ratio < WORTH_IT:
        choices.update({case.title(switch): None for switch in switches})
        return None
    return Rewritten(graph, switches, case, ratio)


def _whole_ratio(
    module: nn.Module,
    own: Callable[..., Any],
    graph: GraphModule,
    switches: Sequence[Switch],
    case: Case,
    before: Callable[..., object],
) -> float:
    """Time of the whole module in torch / with its regions on the kernels: what its user will see."""
    case = case.first(FEW_IMAGES)
    inputs = case.samples()

    def fast(*given: Tensor) -> Any:
        before(given)
        return graph(*given)

    what = f"{graph.code} {case} {[(s.key, s.choice) for s in switches]}"
    parameters = [p for p in module.parameters() if p.requires_grad]
    with kept_buffers(module), torch.random.fork_rng(devices=[]):
        key = measure.key("whole", what, case.batch)
        return measure.remember(key, lambda: _ratio(own, fast, inputs, parameters, case.backward))


def _same(module: nn.Module, own: Callable[..., Any], graph: GraphModule, case: Case) -> bool:
    """Whether both give the same output for one input and seed, up to rounding: a trace may miss what code does."""
    results = []
    inputs = case.first(FEW_IMAGES).samples()
    with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(module):
        for forward in (own, graph):
            torch.manual_seed(0)
            results.append(forward(*inputs))
    if not all(isinstance(y, Tensor) for y in results):
        return True
    theirs, ours = results
    room = 1e-3 * float(theirs.abs().nan_to_num(0, 0, 0).max()) if theirs.numel() else 0.0
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-3, atol=room, equal_nan=True)


class kept_buffers:
    """Buffers of a model come out as they went in."""

    def __init__(self, model: nn.Module) -> None:
        self.buffers = list(model.buffers())

    def __enter__(self) -> None:
        self.values = [b.detach().clone() for b in self.buffers]

    def __exit__(self, *exception: object) -> None:
        with torch.no_grad():
            for buffer, value in zip(self.buffers, self.values, strict=True):
                buffer.copy_(value)


def settle(module: nn.Module, switches: Sequence[Switch], case: Case, choices: Choices) -> None:
    """For every region decide which layers stay dense, then whether the kernels are worth it at all.

    What `choices` holds is done without measuring; what it does not is measured and left there.
    """
    open_ = [switch for switch in switches if case.title(switch) not in choices]
    if open_:
        _measure(module, open_, case)
        choices.update({case.title(switch): switch.choice for switch in open_})
    for switch in switches:
        switch.choose(choices[case.title(switch)])


def _measure(module: nn.Module, switches: Sequence[Switch], case: Case) -> None:
    seen: dict[Switch, tuple[Tensor, ...]] = {}
    hooks = [s.register_forward_pre_hook(lambda s, args: seen.setdefault(s, args) and None) for s in switches]
    with kept_buffers(module), torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                module(*case.first(ENOUGH_IMAGES).samples())
            for hook in hooks:
                hook.remove()
            for number, (switch, inputs) in enumerate(seen.items(), 1):
                _settle_region(switch, inputs, case.backward, f"part {number} of {len(seen)}")
        finally:
            for hook in hooks:
                hook.remove()
    for switch in switches:
        switch.wins = switch.wins and switch in seen


def _settle_region(switch: Switch, inputs: tuple[Tensor, ...], backward: bool, which: str) -> None:
    kernels = switch.kernels
    try:
        kernels.ready(inputs)
        images, program = kernels.lowered(inputs)
    except (Unsupported, ValueError, OverflowError) as error:
        switch.wins, switch.why = False, str(error)
        return
    layers, lib = kernels.layers, kernels.lib
    convs = [op for op in program.ops if isinstance(op, Conv)]
    kernels.dense = set()
    if backward or not kernels.few(images):
        for number, op in enumerate(convs, 1):
            if measure.clearly_sparse(op.geometry, layers.density(op.module), images, lib.lanes):
                continue
            _show(f"measuring {which}, layer {number} of {len(convs)}")
            ratio = measure.layer_ratio(lib, op.geometry, layers.mask(op.module), images, backward)
            kernels.dense |= {op.module} if ratio < 1 / MARGIN else set()
    kernels.programs.clear()
    shape = "|".join(f"{op.geometry}{measure.bucket(layers.density(op.module))}" for op in convs)
    steps = " ".join(step.kind for step in kernels.region.steps)
    inputs = tuple(x.detach()[:FEW_IMAGES] for x in inputs)
    key = measure.key("region", f"{lib.path.name} {shape} {steps}{'' if backward else ' forward'}", images)
    _show(f"measuring {which}, all of it")
    parameters = [p for p in switch.plain.parameters() if p.requires_grad]
    switch.ratio = measure.remember(key, lambda: _ratio(switch.plain, kernels, inputs, parameters, backward))
    switch.wins, switch.key = switch.ratio > WORTH_IT, key
    kernels.programs.clear()
    _show("")


def _show(text: str) -> None:
    """Progress, for those who watch: one line that is written over, unless somebody else draws there."""
    if sys.stderr.isatty() and sys.stderr is sys.__stderr__:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _ratio(
    plain: Callable[..., Any], fast: Callable[..., Any], inputs: Sequence[Tensor], parameters: list[Any], backward: bool
) -> float:
    """Time of one / of the other, on the model as it is."""

    def run(function: Callable[..., Any]) -> Callable[[], object]:
        def once() -> None:
            if not backward:
                with torch.no_grad():
                    function(*inputs)
                return
            with torch.enable_grad():
                given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
                out = function(*given)
                found = [y for y in _tensors(out) if y.requires_grad]
                if found:
                    total = torch.stack([y.sum() for y in found]).sum()
                    torch.autograd.grad(total, [*parameters, *filter(_differs, given)], allow_unused=True)

        return once

    return measure.ratio(run(plain), run(fast))


def _tensors(out: Any) -> list[Tensor]:
    """The tensors of what a module gives."""
    if isinstance(out, Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return [x for part in parts for x in _tensors(part)]


def _differs(x: Tensor) -> bool:
    return x.requires_grad
