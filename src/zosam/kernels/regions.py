"""The sparse layers of a model, and the stretches of operations around them that the kernels understand.

torch.fx gives the operations in execution order. A maximal stretch of consecutive understood operations that
holds at least one sparse layer is a region; everything else stays as it was traced. One call takes a region's place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from zosam.optim.masked import mask_of, masks_of

from .build import Library
from .operations.base import Step
from .operations.index import Geometry, Pattern
from .trace import understood

WORTHWHILE = 0.7  # share of active weights below which zeros are taken for a pattern


class Masks(Protocol):
    """What the kernels need of a sparsity: boolean masks by parameter name, changed in place.

    It may also say whether the coming step needs the gradient of pruned weights, `needs_dense_gradient()`, and where:
    `gradient_wanted(name)`, a mask, or None for everywhere.
    """

    masks: dict[str, Tensor]


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    """Masks by the zeros of those weights that have many."""
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1 and p.is_floating_point()}
    found = {n: w != 0 for n, w in weights.items()}
    return {n: mask for n, mask in found.items() if int(mask.sum()) < WORTHWHILE * mask.numel()}


def _fits(masks: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse masks of something else."""
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        if name not in parameters:
            raise ValueError(f"there is a mask for {name}, which is no parameter of this model")
        if mask.dtype != torch.bool or mask.shape != parameters[name].shape:
            raise ValueError(
                f"the mask of {name} must be boolean and of the weight's shape {tuple(parameters[name].shape)},"
                f" not {mask.dtype} and {tuple(mask.shape)}"
            )


class Layers:
    """Finds the mask of a layer and keeps one pattern per layer and input size.

    A mask belongs to its weight (`zosam.optim.vector`). Masks that are kept nowhere but in the object that was given
    are found by the name of their weight.
    """

    def __init__(self, lib: Library, model: nn.Module, sparse: Masks | Mapping[str, Tensor] | None) -> None:
        self.lib, self.model, self.sparse = lib, model, sparse
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        if masks_of(model.parameters()) and not hasattr(sparse, "needs_dense_gradient"):
            raise ValueError("a sparse method keeps this model: give accelerate that object as well, as `sparse`")
        self.serving = sparse is None  # the weights' own zeros are the pattern; nothing is trained
        if isinstance(sparse, Mapping):
            _fits(sparse, model)
        self.given = _zeros(model) if sparse is None else sparse if isinstance(sparse, Mapping) else sparse.masks
        self.own = set(map(id, self.given.values()))
        self.kept: set[nn.Module] = set()  # whose mask was seen to belong to the weight
        self.why: dict[nn.Parameter, str] = {}  # why torch runs what could run on the kernels, by weight
        self._patterns: dict[tuple[nn.Module, Geometry, bool], Pattern] = {}

    def mask(self, module: nn.Module) -> Tensor | None:
        """The mask of a layer's weight, as it is now; None means every weight is active."""
        weight = module._parameters.get("weight")
        mask = None if weight is None else mask_of(weight)
        if mask is not None:
            self.kept.add(module)
        elif module not in self.kept:  # else it was let go
            mask = self.given.get(self.names.get(id(weight), ""))
        return mask

    def renew(self) -> None:
        """Look for the weights' own zeros again."""
        for name, weight in self.model.named_parameters():
            if name in self.given:
                self.given[name].copy_(weight != 0)

    def any_sparse(self, module: nn.Module) -> bool:
        """Whether some parameter inside has a mask."""
        inside = list(module.parameters())
        return bool(masks_of(inside)) or any(self.names.get(id(p), "") in self.given for p in inside)

    def is_sparse(self, weight: nn.Parameter) -> bool:
        """Whether a parameter has a mask."""
        return bool(masks_of([weight])) or self.names.get(id(weight), "") in self.given

    def density(self, module: nn.Module) -> float:
        mask = self.mask(module)
        return 1.0 if mask is None else float(mask.sum()) / max(mask.numel(), 1)

    def gradient_of(self) -> str:
        """Of which weights a step needs the gradient that needs more than those of active ones: some, or all."""
        return "wanted" if all(self._where(name) is not None for name in self.given) else "all"

    def wanted(self, module: nn.Module) -> Tensor | None:
        """Where the gradient of a layer is wanted, if that is told."""
        name = self.names.get(id(module._parameters["weight"]), "")
        return self._where(name) if name in self.given else None

    def _where(self, name: str) -> Tensor | None:
        asks = getattr(self.sparse, "gradient_wanted", None)
        wanted: Tensor | None = None if asks is None else asks(name)
        return wanted

    def pattern(self, module: nn.Module, geometry: Geometry, pixels: bool) -> Pattern:
        """The pattern of a layer, the same one for all programs."""
        if (module, geometry, pixels) not in self._patterns:
            sparse = self.mask(module) is not None
            self._patterns[module, geometry, pixels] = Pattern(module, geometry, self.lib.lanes, pixels, sparse)
        return self._patterns[module, geometry, pixels]


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
        kind = step.works_on(current.kind if current else "") if step else ""
        if current and (step is None or (kind and kind != current.kind)):
            found.append(current)
            current = None
        if step is None or (current is None and not step.learns):
            continue
        if current is None:
            current = Region(kind)
        current.steps.append(step)
        current.nodes.append(node)
        if step.ends:
            found.append(current)
            current = None
    found += [current] if current else []
    for region in found:
        _edges(region)
    return [r for r in found if any(s.multiplies and s.module and wanted(s.module) for s in r.steps)]


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
