"""Follow a model's code with torch.fx, and say of each operation what it is to the kernels."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node, Tracer

from .operations import convolution, dropping, elementwise, norms, pooling, shortcuts
from .operations.attention import WAYS, written_out
from .operations.base import Step
from .operations.dropping import is_drop_path

Example = Tensor | Mapping[str, Tensor]
Inputs = list[tuple[Any, ...]]  # of one module, for each example
HOLDERS = {
    nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer,
    nn.TransformerDecoder, nn.TransformerDecoderLayer,
}  # fmt: skip
MODULES = (convolution, norms, elementwise, pooling, dropping)  # whose `of_module` is asked
CALLS = (convolution, elementwise, pooling, dropping, shortcuts)  # whose `of_call` is asked


class _LeafTracer(Tracer):
    """Traces into the user's own modules only; torch's own stay whole, save for its transformer layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_drop_path(m) or (m.__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential))

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        written = written_out(m, args, kwargs)
        if written is None and type(m) in HOLDERS:
            raise NotImplementedError("no plain use: its layers are found one by one")
        return super().call_module(m, forward, args, kwargs) if written is None else written()


class _Whole(nn.Module):
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
    root = model
    if type(model) in WAYS or type(model) is nn.Linear:
        if given > 1:  # a mask, or other keys than queries
            return None
        root = _Whole(model)
    parameters = list(inspect.signature(type(root).forward).parameters.values())[1 + given :]
    fixed = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    try:
        graph = _LeafTracer().trace(root, concrete_args=fixed)
        for node in [n for n in graph.nodes if n.op == "placeholder"][given:]:
            for check in list(node.users):  # that it is what it was
                for part in [*check.users, check]:
                    graph.erase_node(part)
            graph.erase_node(node)
        _unpack_at_once(graph)
        return GraphModule(root, graph)
    except Exception:
        return None


def _unpack_at_once(graph: Graph) -> None:
    """`q, k, v = x` is traced as three selections, whose gradients are three tensors as large as x: say it is one."""
    for node in list(graph.nodes):
        picks = [u for u in node.users if u.target is operator.getitem and u.args[0] is node]
        if len(picks) == len(node.users) > 1 and sorted(map(_place, picks)) == list(range(len(picks))):
            with graph.inserting_after(node):
                parts = graph.call_function(_parts, (node,))
            for pick in picks:
                pick.args = (parts, pick.args[1])


def _place(pick: Node) -> int:
    return pick.args[1] if isinstance(pick.args[1], int) else -1


def _parts(x: Any) -> Any:
    return x.unbind() if isinstance(x, Tensor) else x


def entry_points(model: nn.Module, examples: Sequence[Example]) -> list[tuple[nn.Module, Inputs]]:
    """The model itself, or where torch.fx cannot follow it, its outermost parts that can be followed."""
    names = by_place(inspect.signature(model.forward))
    given: Inputs = [in_order(names, (), e) if isinstance(e, Mapping) else (e,) for e in examples]
    whole = all(not isinstance(e, Mapping) or len(args) == len(e) for e, args in zip(examples, given, strict=True))
    if whole and trace(model, len(given[0])) is not None:
        return [(model, given)]
    seen: dict[nn.Module, Inputs] = {}

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = [x for x in kwargs.values() if isinstance(x, Tensor)]  # such calls are left alone
        seen.setdefault(module, []).append((*args, *([None] if named else [])))

    hooks = [m.register_forward_pre_hook(see, with_kwargs=True) for m in model.modules()]
    try:
        with torch.no_grad(), untouched(model):
            for example in examples:
                model(**example) if isinstance(example, Mapping) else model(example)
    finally:
        for hook in hooks:
            hook.remove()

    def parts(module: nn.Module) -> list[tuple[nn.Module, Inputs]]:
        found = []
        for child in module.children():
            inputs = seen.get(child, [])
            tensors = all(isinstance(x, Tensor) for args in inputs for x in args)
            if inputs and tensors and trace(child, len(inputs[0])) is not None:
                found.append((child, inputs[:: max(1, len(inputs) // len(examples))]))
            else:
                found += parts(child)
        return found

    return parts(model)


def by_place(signature: inspect.Signature) -> list[str]:
    """The arguments that a call may give without their names."""
    return [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def in_order(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call by their place, as far as tensors that are given by name follow on them."""
    for name in names[len(args) :]:
        if not isinstance(kwargs.get(name), Tensor):
            break
        args = (*args, kwargs[name])
    return args


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Buffers of a model and torch's random numbers come out as they went in."""
    buffers = list(model.buffers())
    values = [b.detach().clone() for b in buffers]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, values, strict=True):
                    buffer.copy_(value)


def same(module: nn.Module, own: Callable[..., Any], graph: GraphModule, inputs: Sequence[Tensor]) -> bool:
    """Whether both give the same output for one input and seed, up to rounding: a trace may miss what code does."""
    results = []
    with torch.no_grad(), untouched(module):
        for forward in (own, graph):
            torch.manual_seed(0)
            results.append(forward(*inputs))
    if not all(isinstance(y, Tensor) for y in results):
        return True
    theirs, ours = results
    room = 1e-3 * float(theirs.abs().nan_to_num(0, 0, 0).max()) if theirs.numel() else 0.0
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-3, atol=room, equal_nan=True)


def understood(node: Node, modules: dict[str, nn.Module]) -> Step | None:
    """The step that a node stands for, or None."""
    inputs = [arg.name for arg in node.all_input_nodes]
    if node.op == "call_module" and len(inputs) == 1 and not node.kwargs:
        return _module_step(modules[str(node.target)], node.name, inputs)
    if node.op in ("call_function", "call_method"):
        return next((step for kind in CALLS if (step := kind.of_call(node, inputs))), None)
    return None


def _module_step(module: nn.Module, name: str, inputs: list[str]) -> Step | None:
    return next((step for kind in MODULES if (step := kind.of_module(module, name, inputs))), None)


def why_not(module: nn.Module) -> str:
    """Why the weights of a module never run on the kernels; empty if they may."""
    step = _module_step(module, "", [])
    if (step is not None and step.multiplies) or type(module) is nn.MultiheadAttention:
        return ""
    name = type(module).__name__
    if isinstance(module, nn.RNNBase):
        return f"{name} is one call in torch, step after step"
    if type(module) in (nn.Conv1d, nn.Conv2d):
        return f"a {name} of such stride, dilation or padding runs in torch"
    return f"{name} runs in torch"
