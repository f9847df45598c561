"""Find, in a traced model, the runs of operations that the kernels understand.

torch.fx gives the operations in execution order. A maximal stretch of consecutive understood operations that
holds at least one sparse layer is a region; everything else stays as it was traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node, Tracer
from torch.nn import functional as F

_ADD = {operator.add, operator.iadd, torch.add}
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_}
_POOL = {F.adaptive_avg_pool2d}
_KINDS = dict.fromkeys(("conv", "norm", "pool", "shrink", "widen"), "image") | {"linear": "rows", "row_norm": "rows"}
_STARTS = {"conv", "linear", "norm", "row_norm"}


@dataclass
class Step:
    """One understood operation: conv, linear, norm, row_norm, relu, gelu, add, same, pool, shrink (pixels) or widen."""

    kind: str
    name: str
    inputs: list[str]
    module: nn.Module | None = None
    keepdim: bool = False
    inplace: bool = False
    stride: int = 1
    extra: tuple[int, int] = (0, 0)  # channels of zeros before and after


@dataclass
class Region:
    """Consecutive steps, with the names of the values that enter and leave them."""

    kind: str
    steps: list[Step] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class LeafTracer(Tracer):
    """Traces into the user's own modules only; torch's own stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential)


def trace(model: nn.Module) -> GraphModule | None:
    """The model as a graph that shares its modules, or None if torch.fx cannot follow its code."""
    try:
        return GraphModule(model, LeafTracer().trace(model))
    except Exception:
        return None


def understood(node: Node, modules: dict[str, nn.Module]) -> Step | None:
    """The step that a node stands for, or None."""
    inputs = [arg.name for arg in node.all_input_nodes]
    if node.op == "call_module" and len(inputs) == 1 and not node.kwargs:
        module = modules[str(node.target)]
        kind, keepdim = _module_kind(module)
        return Step(kind, node.name, inputs, module, keepdim, bool(getattr(module, "inplace", 0))) if kind else None
    if node.op == "call_function":
        if node.target in _ADD and len(node.args) == 2 == len(inputs) and not node.kwargs:
            return Step("add", node.name, inputs, inplace=node.target is operator.iadd)
        if node.target in _RELU and len(inputs) == 1:
            inplace = bool(node.kwargs.get("inplace")) or node.target in (F.relu_, torch.relu_)
            return Step("relu", node.name, inputs, inplace=inplace)
        if node.target is F.gelu and len(inputs) == 1 and node.kwargs.get("approximate", "none") == "none":
            return Step("gelu", node.name, inputs)
        if node.target in _POOL and node.args[1:] in ((1,), ((1, 1),)):
            return Step("pool", node.name, inputs, keepdim=True)
        if node.target is torch.mean:
            return _mean(node, inputs)
        if node.target is operator.getitem:
            return _shrink(node, inputs)
        if node.target is F.pad:
            before = understood(node.all_input_nodes[0], modules)
            return _widen(node, inputs) if before is not None and before.kind == "shrink" else None
    if node.op == "call_method":
        if node.target in ("relu", "relu_"):
            return Step("relu", node.name, inputs, inplace=node.target == "relu_")
        if node.target == "mean":
            return _mean(node, inputs)
    return None


def regions(graph: GraphModule, wanted: Callable[[nn.Module], bool]) -> list[Region]:
    """The stretches of understood steps that hold a layer for which `wanted` is true."""
    modules = dict(graph.named_modules())
    found: list[Region] = []
    current: Region | None = None
    for node in graph.graph.nodes:
        step = understood(node, modules)
        kind = _KINDS.get(step.kind, "") if step else ""
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


def _edges(region: Region) -> None:
    inside = {step.name for step in region.steps}
    nodes = set(region.nodes)
    for step in region.steps:
        region.inputs += [name for name in step.inputs if name not in inside and name not in region.inputs]
    region.outputs = [node.name for node in region.nodes if any(user not in nodes for user in node.users)]


def _mean(node: Node, inputs: list[str]) -> Step | None:
    given: dict[str, Any] = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
    dim = given.pop("dim", None)
    keepdim = given.pop("keepdim", False)
    if given or not isinstance(dim, (tuple, list)) or not isinstance(keepdim, bool):
        return None
    if not all(isinstance(d, int) for d in dim) or sorted(d % 4 for d in dim if isinstance(d, int)) != [2, 3]:
        return None
    return Step("pool", node.name, inputs, keepdim=keepdim)


def _shrink(node: Node, inputs: list[str]) -> Step | None:
    """x[:, :, ::n, ::n] before a widening, as in shortcuts without weights."""
    stride = node.args[1][-1].step if isinstance(node.args[1], tuple) and isinstance(node.args[1][-1], slice) else None
    whole, every = slice(None), slice(None, None, stride)
    if stride not in (1, 2) or node.args[1] != (whole, whole, every, every):
        return None
    readers = list(node.users)
    if len(readers) != 1 or readers[0].target is not F.pad or _widen(readers[0], []) is None:
        return None
    return Step("shrink", node.name, inputs, stride=int(stride))


def _widen(node: Node, inputs: list[str]) -> Step | None:
    """F.pad with channels of zeros."""
    filled = {"mode": "constant", "value": None} | dict(node.kwargs)
    sizes = node.args[1] if len(node.args) == 2 else None
    if filled["mode"] != "constant" or filled["value"] not in (None, 0):
        return None
    if not isinstance(sizes, tuple) or len(sizes) != 6 or any(sizes[:4]):
        return None
    before, after = sizes[4:]
    if not (isinstance(before, int) and isinstance(after, int) and before >= 0 and after >= 0):
        return None
    return Step("widen", node.name, inputs, extra=(before, after))


def _module_kind(module: nn.Module) -> tuple[str, bool]:
    kind = type(module)
    if kind is nn.Conv2d and _plain_conv(module):
        return "conv", False
    if kind is nn.Linear:
        return "linear", False
    if kind is nn.BatchNorm2d:
        return "norm", False
    if kind is nn.LayerNorm and len(getattr(module, "normalized_shape", ())) == 1:
        return "row_norm", False
    if kind is nn.ReLU:
        return "relu", False
    if kind is nn.GELU and getattr(module, "approximate", "") == "none":
        return "gelu", False
    if kind is nn.Identity or (kind is nn.Dropout and getattr(module, "p", 1) == 0):
        return "same", False
    if kind is nn.AdaptiveAvgPool2d and getattr(module, "output_size", None) in (1, (1, 1)):
        return "pool", True
    return "", False


def _plain_conv(conv: nn.Module) -> bool:
    """Square odd kernel, stride 1 or 2, zero padding below the kernel size, one group."""
    assert isinstance(conv, nn.Conv2d)
    kernel, pad = conv.kernel_size[0], conv.padding
    return (
        conv.groups == 1
        and conv.dilation == (1, 1)
        and conv.kernel_size == (kernel, kernel)
        and kernel % 2 == 1
        and conv.stride in ((1, 1), (2, 2))
        and isinstance(pad, tuple)
        and pad[0] == pad[1] <= max(kernel - 1, 0)
        and conv.padding_mode == "zeros"
    )
