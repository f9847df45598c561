"""Backward, as closures call it: noticed, silenced, or kept to some of the leaves that it reaches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from zosam.optim.graphs import leaves

autograd: Any = torch.autograd


class Backward:
    """Every backward in this thread goes through here, and is noticed.

    The function behind all of them is exchanged while some thread is in here: a mode of torch's would be asked about
    every operation, which costs a small network more than the rest of the bookkeeping. `autograd.grad` stays as it is.
    """

    _lock = threading.Lock()
    _here = threading.local()  # what this thread is in, the innermost last
    _inside = 0  # how deep all threads are in, together
    _engine: Callable[..., Any]

    called = False

    def __enter__(self) -> Self:
        kind = Backward
        with kind._lock:
            if not kind._inside:
                kind._engine = autograd._engine_run_backward
                autograd._engine_run_backward = _run
            kind._inside += 1
        kind._here.stack = [*getattr(kind._here, "stack", ()), self]
        return self

    def __exit__(self, *exception: object) -> None:
        kind = Backward
        kind._here.stack.pop()
        with kind._lock:
            kind._inside -= 1
            if not kind._inside:
                autograd._engine_run_backward = kind._engine

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        """In the place of the backward from these tensors."""
        self.called = True
        Backward._engine(tensors, *arguments, **settings)

    def run_inside(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        """In the place of one that finds what the loss is made of."""
        Backward._engine(tensors, *arguments, **settings)


class OwnBackward(Backward):
    """Makes every backward in this thread leave gradients in `own` alone: whatever else it meets gets its own back."""

    def __init__(self, own: Sequence[Tensor] = ()) -> None:
        self._own = {id(p) for p in own}
        self._others: dict[int, tuple[Tensor, Tensor | None]] = {}  # with the gradients that they had

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        self._set_aside(tensors)
        super().run(tensors, *arguments, **settings)

    def run_inside(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        self._set_aside(tensors)
        super().run_inside(tensors, *arguments, **settings)

    def __exit__(self, *exception: object) -> None:
        for leaf, gradient in self._others.values():
            leaf.grad = gradient
        super().__exit__(*exception)

    def _set_aside(self, tensors: Sequence[Tensor]) -> None:
        """Until the closure has ended: it may read what it finds there."""
        for leaf in leaves(tensors):
            if id(leaf) not in self._own and id(leaf) not in self._others:
                self._others[id(leaf)] = leaf, leaf.grad
                leaf.grad = None


class NoBackward(OwnBackward):
    """Makes every backward in this thread do nothing, so that a closure in torch's own form runs forward only."""

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None: ...


def _run(tensors: Sequence[Tensor], *arguments: Any, accumulate_grad: bool = False, **settings: Any) -> Any:
    stack = getattr(Backward._here, "stack", None)
    if not stack or not accumulate_grad:
        return Backward._engine(tensors, *arguments, accumulate_grad=accumulate_grad, **settings)
    _, _, keeps_graph, inputs = arguments
    inside = keeps_graph or (inputs and not any(isinstance(i, nn.Parameter) for i in inputs))
    run = stack[-1].run_inside if inside else stack[-1].run
    return run(tensors, *arguments, accumulate_grad=True, **settings)
