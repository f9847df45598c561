"""A traced module in which every region that gains runs on the kernels."""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from . import choose
from .graph import Region, regions, trace
from .layers import Layers
from .region import KernelRegion, Unsupported


@dataclass
class Rewritten:
    """The graph to run, and its regions."""

    graph: GraphModule
    switches: list[Switch]

    def describe(self) -> list[str]:
        return [switch.describe() for switch in self.switches]


class Switch(nn.Module):
    """Calls a region on the kernels, or node by node where they cannot take the input or would be slower."""

    def __init__(self, kernels: KernelRegion, plain: GraphModule) -> None:
        super().__init__()
        self.kernels, self.plain = kernels, plain
        self.wins = True

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

    def describe(self) -> str:
        layers = [s for s in self.kernels.region.steps if s.kind in ("conv", "linear")]
        dense = sum(s.module in self.kernels.dense for s in layers)
        way = f"{len(layers) - dense} of {len(layers)} layers sparse" if self.wins else "torch is faster"
        return f"{self.title}: {way}"


def rewrite(module: nn.Module, layers: Layers, example: choose.Example, choices: choose.Choices) -> Rewritten | None:
    """The module with its regions on the kernels, or None if there are none that gain."""
    graph = trace(module)
    if graph is None:
        return None
    found = regions(graph, lambda m: layers.mask(m) is not None)
    switches = [Switch(KernelRegion(layers.lib, layers, region, set()), _alone(graph, region)) for region in found]
    nodes = {node.name: node for node in graph.graph.nodes}
    for region, switch in zip(found, switches, strict=True):
        _splice(graph, region, switch, nodes)
    graph.recompile()
    choose.settle(graph, switches, example, choices)
    if not any(switch.wins for switch in switches):
        return None
    if not _same(module, graph, example):
        warnings.warn("the traced model computes something else, so it runs as before", RuntimeWarning, stacklevel=5)
        return None
    return Rewritten(graph, switches)


def _same(module: nn.Module, graph: GraphModule, example: choose.Example) -> bool:
    """Whether both give the same output for one random input, up to rounding: a trace may miss what code does."""
    results = []
    inputs = choose.samples(example)
    own = type(module).forward
    with torch.no_grad(), torch.random.fork_rng(devices=[]), choose.kept_buffers(module):
        for forward in (partial(own, module), graph):
            torch.manual_seed(0)
            results.append(forward(*inputs))
    if not all(isinstance(y, Tensor) for y in results):
        return True
    theirs, ours = results
    room = 1e-3 * float(theirs.abs().nan_to_num(0, 0, 0).max()) if theirs.numel() else 0.0
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-3, atol=room, equal_nan=True)


def _alone(whole: GraphModule, region: Region) -> GraphModule:
    """The nodes of a region as a module of their own."""
    graph = Graph()
    known: dict[str, Node] = {name: graph.placeholder(name) for name in region.inputs}
    for node in region.nodes:
        known[node.name] = graph.node_copy(node, lambda n: known[n.name])
    outputs = tuple(known[name] for name in region.outputs)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return GraphModule(whole, graph)


def _splice(whole: GraphModule, region: Region, switch: Switch, known: dict[str, Node]) -> None:
    """Put one call in the place of the region's nodes; `known` follows where each value now comes from."""
    graph, name = whole.graph, f"region_of_{region.steps[0].name}"
    whole.add_submodule(name, switch)
    last = region.nodes[-1]
    with graph.inserting_after(last):
        call = graph.call_module(name, tuple(known[value] for value in region.inputs))
    after = call
    for position, output in enumerate(region.outputs):
        value = call
        if len(region.outputs) > 1:
            with graph.inserting_after(after):
                value = after = graph.call_function(operator.getitem, (call, position))
        known[output].replace_all_uses_with(value, delete_user_cb=lambda user: user not in region.nodes)
        known[output] = value
    for node in reversed(region.nodes):
        graph.erase_node(node)
