"""Passes through the model: run a closure forward only, or with its gradient.

A sharpness-aware step runs the model several times. To the rest of the program it must look like one pass:
BatchNorm statistics and any other buffer move once, the random streams advance once, every pass of the step sees the
same dropout, and parameters that the optimizer does not hold get the gradient of one pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from zosam.distributed.ddp import Averaging
from zosam.distributed.fsdp import any_sharded
from zosam.distributed.ranks import ALONE, Ranks, joins_others
from zosam.optim.closure_checks import not_finite, require_keep
from zosam.optim.graphs import CONTEXTS, leaves
from zosam.optim.snapshot import Modules, Snapshot

Closure = Callable[..., Tensor]
autograd: Any = torch.autograd
Keep = slice | Tensor  # which samples of the batch a closure shall evaluate: x[keep], y[keep]


class Passes:
    """The passes of one optimizer; of those of a step, the first full one with a gradient leaves its traces."""

    def __init__(
        self, params: Callable[[], list[Tensor]], per_sample: bool = False, ranks: Callable[[], Ranks] = lambda: ALONE
    ) -> None:
        self.params, self.per_sample, self.ranks = params, per_sample, ranks
        self.count = {"forward": 0.0, "backward": 0.0}
        self.counted = False  # whether this step has left its traces
        self.moves = 0  # how often the pass that counted has moved the statistics
        self.check_finite: bool | None = None  # whether a loss is looked at; None: if that waits for no device
        self.loss = torch.zeros(())  # of the pass that counted, on this rank
        self.mean_loss = torch.zeros(())  # and its mean, over all ranks
        self.modules = Modules(params, lambda: joins_others() and (ranks().world > 1 or any_sharded(params())))
        self.averaging = Averaging(params, ranks, self.modules.all)
        self._samples = 1
        self._differentiates = 0  # how much of autograd the closures use inside, as found out: see CONTEXTS
        self._start: Snapshot | None = None  # as before the step
        self._now: Snapshot | None = None  # as before the next pass without traces, where that is known

    @contextmanager
    def together(self) -> Iterator[None]:
        """The passes in here are one step, all or nothing: an exception takes back what they have changed."""
        self._start = self._now = self.take()
        self.counted = False
        try:
            yield
        except BaseException:
            self._start.restore()
            raise
        finally:
            self._start = self._now = None
            self.counted = False

    @torch.no_grad()
    def evaluate(self, closure: Closure, keep: Keep | None = None, as_with_gradient: bool = False) -> Tensor:
        """The loss, forward only; nothing changes. `as_with_gradient`: what is compiled for such a pass serves here."""
        params = self.params()
        grads = [p.grad for p in params]
        for p in params:
            p.grad = None  # a closure in torch's own form clears gradients
        try:
            loss = self._forward_only(closure, keep, params, -1 if as_with_gradient else self._differentiates)
        finally:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
        self.add(keep, forward=1)
        return loss.detach()

    def _forward_only(self, closure: Closure, keep: Keep | None, params: list[Tensor], first: int) -> Tensor:
        """Without a graph or, for a closure that differentiates inside, with as little of one as it needs."""
        for context in CONTEXTS[first:]:
            try:
                with context(params), self.without_traces(), self.silent(), NoBackward():
                    return self.call(closure, keep)
            except RuntimeError as error:
                if "does not require grad" not in str(error) or context is CONTEXTS[-1]:
                    raise
                self._differentiates += 1
        raise AssertionError

    def gradient(self, closure: Closure, keep: Keep | None = None, local: bool = False) -> Tensor:
        """The loss; its gradient is left in `p.grad`: the mean over all ranks or, if `local`, this rank's own.

        A local one is not what the base shall use, so other parameters keep the gradient that they have.
        """
        counts, params = keep is None and not self.counted, self.params()
        for p in params:
            p.grad = None
        sending = self._sending(gradients=not local, buffers=counts)
        traces = self._with_traces() if counts else self.without_traces()
        with torch.enable_grad(), OwnBackward(params) if local else Backward() as backward, traces, sending:
            loss = self.call(closure, keep)
            if not backward.called and all(p.grad is None for p in params):  # else the closure has gone back itself
                loss.mean().backward()
        if not local and joins_others():
            self.averaging.require()
        loss = loss.detach()
        mean = self.agreed(loss)
        self.add(keep, forward=1, backward=1)
        if counts:
            self.loss, self.mean_loss = loss, mean
        return loss

    def gather(self, closure: Closure, backward: Backward) -> Tensor:
        """The loss; its gradient is added to what `p.grad` holds. Traces stay: it is a pass of the caller's own."""
        params = self.params()
        with torch.enable_grad(), backward:
            before = [(id(p.grad), p.grad._version) for p in params if p.grad is not None]
            loss = self.call(closure)
            now = [(id(p.grad), p.grad._version) for p in params if p.grad is not None]
            if not backward.called and now == before:  # else the closure has gone back itself
                loss.mean().backward()
        self.add(None, forward=1, backward=1)
        return loss.detach()

    def agreed(self, loss: Tensor) -> Tensor:
        """The mean over batch and ranks; one that is not finite, on whichever rank, stops all of them alike."""
        mean, ranks = loss.detach().mean(), self.ranks()
        if ranks.world > 1:
            mean = ranks.mean(mean.double(), "loss").to(mean.dtype)
        looks = mean.device.type == "cpu" if self.check_finite is None else self.check_finite
        if looks and not bool(mean.isfinite()):
            raise not_finite(mean.item())
        return mean

    def silent(self) -> AbstractContextManager[None]:
        """Passes in here send nothing to other ranks, unless layers of the model do."""
        return self._sending(gradients=False, buffers=False)

    def averaged(self) -> AbstractContextManager[None]:
        """Passes in here are averaged over ranks in their backward."""
        return self._sending(gradients=True, buffers=False)

    def _sending(self, gradients: bool, buffers: bool) -> AbstractContextManager[None]:
        return self.averaging.sending(gradients, buffers) if joins_others() else nullcontext()

    def call(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """What the closure returns, if that is a loss."""
        if keep is not None:
            require_keep(closure)
        loss = closure() if keep is None else closure(keep=keep)
        if not isinstance(loss, Tensor):
            raise TypeError(f"the closure returned {type(loss).__name__}; it must return the loss, a tensor")
        if self.per_sample and loss.dim() != 1:
            raise ValueError(f"this optimizer needs one loss per sample (reduction='none'), not {tuple(loss.shape)}")
        if not self.per_sample and loss.numel() != 1:
            raise ValueError(f"the closure must return one number, such as the mean loss, not {tuple(loss.shape)}")
        if keep is None:
            self._samples = loss.numel()
        return loss

    def add(self, keep: Keep | None, forward: float = 0, backward: float = 0) -> None:
        """Count passes, in units of whole batches."""
        share = self.share(keep)
        self.count["forward"] += forward * share
        self.count["backward"] += backward * share

    def share(self, keep: Keep | None) -> float:
        """How much of the batch `keep` is."""
        if isinstance(keep, slice):
            return 1.0 / (keep.step or 1)
        return 1.0 if keep is None else keep.numel() / self._samples

    # --- traces ------------------------------------------------------------------------------------------------------

    def take(self) -> Snapshot:
        """Buffers and random streams as they are now."""
        return Snapshot(self.modules.all(), self.params()[0].device, self._start)

    def begin_again(self) -> None:
        """Be as before the step, for a pass that leaves its traces."""
        self.counted = False
        if self._start is not None:
            self._start.restore()

    @contextmanager
    def without_traces(self) -> Iterator[None]:
        """Buffers and random streams are afterwards as before, and the noise is that of the step's other passes."""
        now = self._now or self.take()
        if self._start is not None:
            self._now = now
            self._start.streams.restore()
        try:
            with self.modules.watch(now):
                yield
        finally:
            now.restore()

    @contextmanager
    def _with_traces(self) -> Iterator[None]:
        before = self._start or self.take()
        before.note_versions()
        with self.modules.watch(before):
            yield
        self.moves = before.moves_since()
        self.counted, self._now = self._start is not None, None


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
