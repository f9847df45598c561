"""Passes through the model: run a closure forward only, or with its gradient.

A sharpness-aware step runs the model several times. To the rest of the program it must look like one pass:
BatchNorm statistics and any other buffer move once, the random streams advance once, and every pass of the step
sees the same dropout.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from zosam.distributed.ddp import Averaging
from zosam.distributed.ranks import ALONE, Ranks
from zosam.optim.snapshot import Modules, Moment

Closure = Callable[..., Tensor]
Keep = slice | Tensor  # which samples of the batch a closure shall evaluate: x[keep], y[keep]


class NoBackward:
    """Makes `loss.backward()` do nothing in this thread, so that a closure in torch's own form runs forward only.

    The method itself is exchanged while some thread is in here: a mode of torch's would be asked about every
    operation, which costs a small network more than the rest of the bookkeeping.
    """

    _lock = threading.Lock()
    _here = threading.local()  # how deep this thread is in
    _inside = 0  # how deep all threads are in, together
    _backward: Callable[..., Any]

    def __enter__(self) -> None:
        kind = NoBackward
        with kind._lock:
            if not kind._inside:
                kind._backward = Tensor.backward
                Tensor.backward = _backward  # type: ignore[assignment]
            kind._inside += 1
        kind._here.depth = getattr(kind._here, "depth", 0) + 1

    def __exit__(self, *exception: object) -> None:
        kind = NoBackward
        kind._here.depth -= 1
        with kind._lock:
            kind._inside -= 1
            if not kind._inside:
                Tensor.backward = kind._backward  # type: ignore[method-assign]


def _backward(loss: Tensor, *arguments: Any, **settings: Any) -> None:
    if not getattr(NoBackward._here, "depth", 0):
        NoBackward._backward(loss, *arguments, **settings)


class Passes:
    """The passes of one optimizer; of those of a step, the first full one with a gradient leaves its traces."""

    def __init__(
        self, params: Callable[[], list[Tensor]], per_sample: bool = False, ranks: Callable[[], Ranks] = lambda: ALONE
    ) -> None:
        self.params, self.per_sample, self.ranks = params, per_sample, ranks
        self.count = {"forward": 0.0, "backward": 0.0}
        self.counted = False  # whether this step has left its traces
        self.loss = torch.zeros(())  # of the pass that counted, on this rank
        self.mean_loss = torch.zeros(())  # and its mean, over all ranks
        self._samples = 1
        self._modules = Modules()
        self.averaging = Averaging(params, ranks)
        self._start: Moment | None = None  # as before the step
        self._now: Moment | None = None  # as before the next pass without traces, where that is known

    @contextmanager
    def together(self) -> Iterator[None]:
        """The passes in here are one step, all or nothing: an exception takes back what they have changed."""
        self._start = self._now = self._moment()
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
    def evaluate(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """The loss, forward only; nothing changes."""
        params = self.params()
        grads = [p.grad for p in params]
        for p in params:
            p.grad = None
        try:
            with self.without_traces(), self.silent(), NoBackward():
                loss = self.call(closure, keep)
        finally:
            for p, g in zip(params, grads, strict=True):
                p.grad = g
        self.add(keep, forward=1)
        return loss.detach()

    def gradient(self, closure: Closure, keep: Keep | None = None, local: bool = False) -> Tensor:
        """The loss; its gradient is left in `p.grad`: the mean over all ranks or, if `local`, this rank's own."""
        counts, params = keep is None and not self.counted, self.params()
        for p in params:
            p.grad = None
        sending = self.averaging.sending(gradients=not local, buffers=counts)
        with torch.enable_grad(), self._with_traces() if counts else self.without_traces(), sending:
            loss = self.call(closure, keep)
            if all(p.grad is None for p in params):  # else the closure has called backward itself
                loss.mean().backward()
        if not local:
            self.averaging.require()
        loss = loss.detach()
        mean = self.agreed(loss)
        self.add(keep, forward=1, backward=1)
        if counts:
            self.loss, self.mean_loss = loss, mean
        return loss

    def agreed(self, loss: Tensor) -> Tensor:
        """The mean over batch and ranks; one that is not finite, on whichever rank, stops all of them alike."""
        mean, ranks = loss.detach().mean(), self.ranks()
        if ranks.world > 1:
            mean = ranks.mean(mean.double(), "loss").to(mean.dtype)
        require_finite(mean)
        return mean

    def silent(self) -> AbstractContextManager[None]:
        """Passes in here send nothing to other ranks, unless layers of the model do."""
        return self.averaging.sending(gradients=False, buffers=False)

    def call(self, closure: Closure, keep: Keep | None = None) -> Tensor:
        """What the closure returns, if that is a loss."""
        if keep is not None and not takes_keep(closure):
            raise TypeError(
                "this optimizer evaluates part of the batch, so its closure must take which part:"
                " def closure(keep=slice(None)): return loss(model(x[keep]), y[keep])"
            )
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

    def replay(self) -> None:
        """Begin the next pass with the noise with which the step began."""
        if self._start is not None:
            self._start.streams.restore()

    @contextmanager
    def without_traces(self) -> Iterator[None]:
        """Buffers and random streams are afterwards as before, and the noise is that of the step's other passes."""
        moment = self._now or self._moment()
        if self._start is not None:
            self._now = moment
        self.replay()
        try:
            with self._modules.watch(moment):
                yield
        finally:
            moment.restore()

    @contextmanager
    def _with_traces(self) -> Iterator[None]:
        with self._modules.watch(self._start or self._moment()):
            yield
        self.counted, self._now = self._start is not None, None

    def _moment(self) -> Moment:
        return Moment(self._modules, self.params()[0].device)


def require_finite(loss: Tensor) -> None:
    if not bool(loss.isfinite().all()):
        raise FloatingPointError(
            f"the loss is {loss.mean().item()}: the step was not taken, weights are as before it;"
            " look at the learning rate, rho and the inputs"
        )


def takes_keep(closure: Closure) -> bool:
    """Whether the closure has an argument `keep`."""
    try:
        parameters = inspect.signature(closure).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "keep" or p.kind is p.VAR_KEYWORD for p in parameters)


def part_of_batch(fraction: float) -> slice | None:
    """Which samples make up that part of any batch: every n-th; None for all of them."""
    n = round(1 / fraction) if 0 < fraction <= 1 else 0
    if n < 1 or abs(fraction * n - 1) > 1e-3:
        raise ValueError(f"batch_fraction must be 1, 1/2, 1/3, 1/4, ...; not {fraction}")
    return None if n == 1 else slice(None, None, n)
