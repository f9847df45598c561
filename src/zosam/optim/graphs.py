"""The graph that a pass makes: which leaves it has, and how little of one a pass without gradient needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge


def leaves(tensors: Sequence[Tensor | GradientEdge]) -> list[Tensor]:
    """The leaves of the graphs of these tensors: where a backward from them leaves gradients."""
    roots = [t.grad_fn if isinstance(t, Tensor) else t.node for t in tensors]
    todo = [root for root in roots if root is not None]
    found: list[Tensor] = []
    seen = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                found.append(node.variable)
            else:
                todo.append(node)
    return found


@contextmanager
def frozen(params: Sequence[Tensor]) -> Iterator[None]:
    """The weights need no gradient, so that only what depends on other leaves, such as inputs, has a graph."""
    held = [p for p in params if p.requires_grad]
    for p in held:
        p.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for p in held:
            p.requires_grad_(True)


@contextmanager
def whole_graph(params: Sequence[Tensor]) -> Iterator[None]:
    with torch.enable_grad():
        yield


# Forward only, for closures that use autograd inside, such as a gradient penalty: from cheap to dear. A pass is under
# no_grad already, so that in the first there is no graph at all.
CONTEXTS: Sequence[Callable[[list[Tensor]], AbstractContextManager[Any]]] = (nullcontext, frozen, whole_graph)
