"""Follow a model's code with torch.fx, and say of each operation what it is to the kernels."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.fx import GraphModule, Node, Tracer
from torch.nn import functional as F

from .attention import WAYS, turned_dropout, written_out
from .dropping import is_drop_path
from .steps import CURVES, WINDOWS, Step, frame_of, module_step

_ADD = {operator.add, operator.iadd, torch.add}
_RELU = {F.relu, F.relu_, torch.relu, torch.relu_}
_POOL = {F.adaptive_avg_pool2d: 2, F.adaptive_avg_pool1d: 1}


class LeafTracer(Tracer):
    """Traces into the user's own modules only; torch's own stay whole, save for its transformer layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_drop_path(m) or (m.__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential))

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        written = written_out(m, args, kwargs)
        return super().call_module(m, forward, args, kwargs) if written is None else written()


class Whole(nn.Module):
    """Calls one of torch's own layers, which a tracer then sees from outside."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def trace(model: nn.Module, given: int = 1) -> GraphModule | None:
    """The model as a graph that shares its modules, or None if torch.fx cannot follow its code.

    Its first arguments are `given`, the others stay at their defaults and are none of the graph's.
    """
    root = Whole(model) if type(model) in WAYS or type(model) is nn.Linear else model
    parameters = list(inspect.signature(type(root).forward).parameters.values())[1 + given :]
    fixed = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    try:
        graph = LeafTracer().trace(root, concrete_args=fixed)
        for node in [n for n in graph.nodes if n.op == "placeholder"][given:]:
            for check in list(node.users):  # that it is what it was
                for part in [*check.users, check]:
                    graph.erase_node(part)
            graph.erase_node(node)
        return GraphModule(root, graph)
    except Exception:
        return None


class Projection:
    """A linear layer whose weight is a parameter of another module: F.linear(x, weight, bias)."""

    training = False

    def __init__(self, root: nn.Module, weight: str, bias: str | None) -> None:
        self._places: dict[str, tuple[nn.Module, str] | None] = {}
        for name, target in (("weight", weight), ("bias", bias)):
            path, _, attribute = (target or "").rpartition(".")
            self._places[name] = None if target is None else (root.get_submodule(path), attribute)
        self.out_features = int(self._parameters["weight"].shape[0])  # type: ignore[union-attr]

    @property
    def _parameters(self) -> dict[str, nn.Parameter | None]:
        """As those of a module, and always the ones that the other module has now."""
        return {name: place and place[0]._parameters[place[1]] for name, place in self._places.items()}

    def named_parameters(self, recurse: bool = False) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self._parameters.items() if p is not None]


def understood(node: Node, modules: dict[str, nn.Module]) -> Step | None:
    """The step that a node stands for, or None."""
    inputs = [arg.name for arg in node.all_input_nodes]
    if node.op == "call_module" and len(inputs) == 1 and not node.kwargs:
        return module_step(modules[str(node.target)], node.name, inputs)
    if node.op == "call_function":
        if node.target is F.linear:
            return _linear(node)
        if node.target in _ADD and len(node.args) == 2 == len(inputs) and not node.kwargs:
            return Step("add", node.name, inputs, inplace=node.target is operator.iadd)
        if node.target in _RELU and len(inputs) == 1:
            inplace = bool(node.kwargs.get("inplace")) or node.target in (F.relu_, torch.relu_)
            return Step("relu", node.name, inputs, inplace=inplace)
        if node.target in CURVES and len(inputs) == 1 and node.kwargs.get("approximate", "none") == "none":
            inplace = bool(node.kwargs.get("inplace")) or node.args[1:] == (True,)
            return Step("curve", node.name, inputs, inplace=inplace, activation=CURVES[node.target])
        if node.target in _POOL and node.args[1:] in ((1,), ((1,) * _POOL[node.target],)):
            return Step("pool", node.name, inputs, keepdim=True, axes=_POOL[node.target])
        if node.target is torch.mean:
            return _mean(node, inputs)
        if node.target in WINDOWS:
            return _window_call(node, inputs)
        if node.target is torch.cat:
            return _cat(node)
        if node.target is turned_dropout:
            return Step("noise", node.name, inputs, draw=partial(turned_dropout, rate=cast(float, node.args[1])))
        if node.target is F.dropout:
            return _dropout(node, inputs)
        if node.target is operator.getitem:
            return _subsample(node, inputs)
        if node.target is F.pad:
            before = understood(node.all_input_nodes[0], modules)
            return _pad_channels(node, inputs) if before is not None and before.kind == "subsample" else None
    if node.op == "call_method":
        if node.target in ("relu", "relu_"):
            return Step("relu", node.name, inputs, inplace=node.target == "relu_")
        if node.target == "mean":
            return _mean(node, inputs)
    return None


def _linear(node: Node) -> Step | None:
    """F.linear of a value and parameters of the model."""
    given: dict[str, Any] = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
    x, weight, bias = (given.get(name) for name in ("input", "weight", "bias"))
    held = [p for p in (weight, bias) if p is not None]
    root = node.graph.owning_module
    if not isinstance(x, Node) or root is None or not all(isinstance(p, Node) and p.op == "get_attr" for p in held):
        return None
    try:
        projection = Projection(root, str(weight.target), None if bias is None else str(bias.target))  # type: ignore[union-attr]
    except (AttributeError, KeyError):
        return None
    return Step("linear", node.name, [x.name], cast(nn.Module, projection))


def _mean(node: Node, inputs: list[str]) -> Step | None:
    given: dict[str, Any] = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
    dim = given.pop("dim", None)
    keepdim = given.pop("keepdim", False)
    if given or not isinstance(dim, (tuple, list)) or not isinstance(keepdim, bool):
        return None
    if not all(isinstance(d, int) for d in dim) or sorted(d % 4 for d in dim if isinstance(d, int)) != [2, 3]:
        return None
    return Step("pool", node.name, inputs, keepdim=keepdim)


def _window_call(node: Node, inputs: list[str]) -> Step | None:
    """A pooling function; as a module it would say the same."""
    largest, axes = WINDOWS[node.target]
    names = ("kernel_size", "stride", "padding", *(("dilation",) if largest else ()), "ceil_mode")
    names = names if largest else (*names, "count_include_pad", *(("divisor_override",) if axes == 2 else ()))
    given: dict[str, Any] = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    if len(inputs) != 1 or len(node.args) - 1 > len(names) or given.pop("return_indices", False):
        return None
    frame = frame_of(largest, axes, **given)
    return None if frame is None else Step("window", node.name, inputs, frame=frame, axes=axes)


def _cat(node: Node) -> Step | None:
    """Channels side by side."""
    given: dict[str, Any] = dict(zip(("tensors", "dim"), node.args, strict=False)) | dict(node.kwargs)
    tensors = given.pop("tensors", None)
    if given != {"dim": 1} or not isinstance(tensors, (tuple, list)) or not all(isinstance(x, Node) for x in tensors):
        return None
    return Step("cat", node.name, [x.name for x in tensors])


def _dropout(node: Node, inputs: list[str]) -> Step | None:
    given: dict[str, Any] = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | dict(
        node.kwargs
    )
    rate, training = given.get("p", 0.5), given.get("training", True)
    if len(inputs) != 1 or not isinstance(rate, float | int) or not isinstance(training, bool):
        return None
    if not training or rate == 0:
        return Step("identity", node.name, inputs)
    inplace = given.get("inplace") is True
    return Step("noise", node.name, inputs, inplace=inplace, draw=lambda ones: F.dropout(ones, rate))


def _subsample(node: Node, inputs: list[str]) -> Step | None:
    """x[:, :, ::n, ::n] before channels are padded, as in shortcuts without weights."""
    stride = node.args[1][-1].step if isinstance(node.args[1], tuple) and isinstance(node.args[1][-1], slice) else None
    whole, every = slice(None), slice(None, None, stride)
    if stride not in (1, 2) or node.args[1] != (whole, whole, every, every):
        return None
    readers = list(node.users)
    if len(readers) != 1 or readers[0].target is not F.pad or _pad_channels(readers[0], []) is None:
        return None
    return Step("subsample", node.name, inputs, stride=int(stride))


def _pad_channels(node: Node, inputs: list[str]) -> Step | None:
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
    return Step("pad_channels", node.name, inputs, extra=(before, after))
