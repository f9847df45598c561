"""Which way is faster, the kernels or torch: region by region, and layer by layer inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from . import measure
from .execute import KernelRegion, Switch, Unsupported
from .index import Layers
from .plan import Conv
from .regions import alone, regions, splice
from .trace import trace

Example = Sequence[tuple[torch.Size, torch.dtype]]
Choices = dict[str, list[str] | None]  # by region: the layers that stay dense, or None for all on torch
MARGIN = 1.05  # a layer leaves the kernels only if torch gains more than noise


@dataclass
class Rewritten:
    """The graph to run, and its regions."""

    graph: GraphModule
    switches: list[Switch]

    def describe(self) -> list[str]:
        return [switch.describe() for switch in self.switches]


def rewrite(module: nn.Module, layers: Layers, example: Example, choices: Choices) -> Rewritten | None:
    """The module with its regions on the kernels, or None if there are none that gain."""
    graph = trace(module)
    if graph is None:
        return None
    found = regions(graph, lambda m: layers.mask(m) is not None)
    switches = [Switch(KernelRegion(layers.lib, layers, region, set()), alone(graph, region)) for region in found]
    nodes = {node.name: node for node in graph.graph.nodes}
    for region, switch in zip(found, switches, strict=True):
        splice(graph, region, switch, nodes)
    graph.recompile()
    settle(graph, switches, example, choices)
    if not any(switch.wins for switch in switches):
        return None
    if not _same(module, graph, example):
        warnings.warn("the traced model computes something else, so it runs as before", RuntimeWarning, stacklevel=5)
        return None
    return Rewritten(graph, switches)


def _same(module: nn.Module, graph: GraphModule, example: Example) -> bool:
    """Whether both give the same output for one random input, up to rounding: a trace may miss what code does."""
    results = []
    inputs = samples(example)
    own = type(module).forward
    with torch.no_grad(), torch.random.fork_rng(devices=[]), kept_buffers(module):
        for forward in (partial(own, module), graph):
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


def samples(example: Example) -> list[Tensor]:
    """Random inputs of the example's shapes; zeros where it holds integers."""
    return [torch.randn(s) if d.is_floating_point else torch.zeros(s, dtype=d) for s, d in example]


def settle(module: nn.Module, switches: Sequence[Switch], example: Example, choices: Choices) -> None:
    """For every region decide which layers stay dense, then whether the kernels are worth it at all.

    What `choices` holds is done without measuring; what it does not is measured and left there.
    """
    open_ = [switch for switch in switches if switch.title not in choices]
    if open_:
        _measure(module, open_, example)
        choices.update({switch.title: switch.choice for switch in open_})
    for switch in switches:
        switch.choose(choices[switch.title])


def _measure(module: nn.Module, switches: Sequence[Switch], example: Example) -> None:
    seen: dict[Switch, tuple[Tensor, ...]] = {}
    hooks = [s.register_forward_pre_hook(lambda s, args: seen.setdefault(s, args) and None) for s in switches]
    with kept_buffers(module), torch.random.fork_rng(devices=[]):
        try:
            with torch.no_grad():
                module(*samples(example))
            for hook in hooks:
                hook.remove()
            for switch, inputs in seen.items():
                _settle_region(switch, inputs)
        finally:
            for hook in hooks:
                hook.remove()
    for switch in switches:
        switch.wins = switch.wins and switch in seen


def _settle_region(switch: Switch, inputs: tuple[Tensor, ...]) -> None:
    kernels = switch.kernels
    try:
        kernels.ready(inputs)
        images, program = kernels.lowered(inputs)
    except (Unsupported, ValueError, OverflowError):
        switch.wins = False
        return
    layers = kernels.layers
    convs = [op for op in program.ops if isinstance(op, Conv)]
    ratios = {op.module: measure.layer_ratio(kernels.lib, op.geometry, layers.mask(op.module), images) for op in convs}
    kernels.dense = {module for module, ratio in ratios.items() if ratio < 1 / MARGIN}
    kernels.programs.clear()
    shape = "|".join(f"{op.geometry}{measure.bucket(layers.density(op.module))}" for op in convs)
    steps = " ".join(step.kind for step in kernels.region.steps)
    inputs = tuple(x.detach() for x in inputs)
    key = measure.key("region", f"{kernels.lib.path.name} {shape} {steps}", images)
    switch.wins = measure.remember(key, lambda: _region_ratio(switch, inputs)) > 1.0
    kernels.programs.clear()  # their memory: training makes its own


def _region_ratio(switch: Switch, inputs: tuple[Tensor, ...]) -> float:
    """Time of the region in torch / on the kernels, forward and backward, on the model as it is."""
    parameters = [p for p in switch.plain.parameters() if p.requires_grad]

    def run(region: Callable[..., Any]) -> Callable[[], object]:
        def once() -> None:
            with torch.enable_grad():
                given = [x.requires_grad_(x.is_floating_point()) for x in inputs]
                out = region(*given)
                total = sum(y.sum() for y in (out if isinstance(out, tuple) else (out,)))
                torch.autograd.grad(total, [*parameters, *given], allow_unused=True)

        return once

    took = measure.best({"plain": run(switch.plain), "kernels": run(switch.kernels)})
    return took["plain"] / took["kernels"]
