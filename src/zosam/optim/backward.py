"""What a backward does while a pass of ours runs: all of it, a part, or nothing, whoever calls it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

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


class NoBackward(Backward):
    """Makes every backward in this thread do nothing, so that a closure in torch's own form runs forward only."""

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None: ...


class OwnBackward(Backward):
    """Makes every backward in this thread leave gradients in `params` alone; whatever else it meets keeps its own."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._own = {id(p) for p in params}

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        others = [(leaf, leaf.grad) for leaf in leaves(tensors) if id(leaf) not in self._own]
        for leaf, _ in others:
            leaf.grad = None
        try:
            super().run(tensors, *arguments, **settings)
        finally:
            for leaf, gradient in others:
                leaf.grad = gradient


class GatheringBackward(Backward):
    """Sets `gathered` gradients of `params` aside until the first backward in this thread adds to them.

    So a closure in torch's own form, which clears gradients first, drops none of those that were gathered before.
    """

    def __init__(self, params: Sequence[Tensor], gathered: Sequence[Tensor]) -> None:
        wanted = {id(g) for g in gathered}
        self._aside = [(p, p.grad) for p in params if p.grad is not None and id(p.grad) in wanted]
        for p, _ in self._aside:
            p.grad = None

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        self.bring_back()
        super().run(tensors, *arguments, **settings)

    def bring_back(self) -> None:
        while self._aside:
            p, gathered = self._aside.pop()
            p.grad = gathered if p.grad is None else gathered + p.grad


def _run(tensors: Sequence[Tensor], *arguments: Any, accumulate_grad: bool = False, **settings: Any) -> Any:
    stack = getattr(Backward._here, "stack", None)
    run = stack[-1].run if stack and accumulate_grad else Backward._engine
    return run(tensors, *arguments, accumulate_grad=accumulate_grad, **settings)
