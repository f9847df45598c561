"""Find, in a traced model, the stretches of operations that the kernels understand, and put one call in their place.

torch.fx gives the operations in execution order. A maximal stretch of consecutive understood operations that
holds at least one sparse layer is a region; everything else stays as it was traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.fx import Graph, GraphModule, Node

from .steps import Step
from .trace import understood

_IMAGE = {"conv", "batch_norm", "pool", "window", "cat", "subsample", "pad_channels"}
_ROWS = {"linear", "layer_norm"}
_STARTS = {"conv", "linear", "batch_norm", "layer_norm"}


@dataclass
class Region:
    """Consecutive steps, with the names of the values that enter and leave them."""

    kind: str  # image, line or rows
    steps: list[Step] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def regions(graph: GraphModule, wanted: Callable[[nn.Module], bool]) -> list[Region]:
    """The stretches of understood steps that hold a layer for which `wanted` is true."""
    modules = dict(graph.named_modules())
    found: list[Region] = []
    current: Region | None = None
    for node in graph.graph.nodes:
        if node.op == "get_attr":  # a parameter, of no step's own
            continue
        step = understood(node, modules)
        kind = _kind(step, current) if step else ""
        starts = step is not None and step.kind in _STARTS
        if current and (step is None or (kind and kind != current.kind)):
            found.append(current)
            current = None
        if step is None or (current is None and not starts):
            continue
        if current is None:
            current = Region(kind)
        current.steps.append(step)
        current.nodes.append(node)
        if step.kind == "pool":  # what follows has no pixels
            found.append(current)
            current = None
    found += [current] if current else []
    for region in found:
        _edges(region)
    return [r for r in found if any(s.kind in ("conv", "linear") and s.module and wanted(s.module) for s in r.steps)]


def _kind(step: Step, current: Region | None) -> str:
    """What a step works on; empty if on anything."""
    if step.kind == "cat":  # over channels, be it of pictures or of lines
        return current.kind if current and current.kind != "rows" else "image"
    if step.kind in _IMAGE:
        return "image" if step.axes == 2 else "line"
    return "rows" if step.kind in _ROWS else ""


def _edges(region: Region) -> None:
    inside = {step.name for step in region.steps}
    nodes = set(region.nodes)
    for step in region.steps:
        region.inputs += [name for name in step.inputs if name not in inside and name not in region.inputs]
    region.outputs = [node.name for node in region.nodes if any(user not in nodes for user in node.users)]


def alone(whole: GraphModule, region: Region) -> GraphModule:
    """The nodes of a region as a module of their own."""
    graph = Graph()
    known: dict[str, Node] = {name: graph.placeholder(name) for name in region.inputs}
    for node in region.nodes:
        known[node.name] = graph.node_copy(node, lambda n: known.get(n.name) or graph.get_attr(str(n.target)))
    outputs = tuple(known[name] for name in region.outputs)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return GraphModule(whole, graph)


def splice(whole: GraphModule, region: Region, call_in_place: nn.Module, known: dict[str, Node]) -> None:
    """Put one call in the place of the region's nodes; `known` follows where each value now comes from."""
    graph, name = whole.graph, f"region_of_{region.steps[0].name}"
    whole.add_submodule(name, call_in_place)
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
