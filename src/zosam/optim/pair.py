"""Several candidates with a graph each: run the model at each of them, then go back through the worst.

A graph keeps a parameter, not its values, and must find them again in its backward. So the values of each candidate
stay in memory of their own, and the parameters' data are exchanged, never edited in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from zosam.optim.passes import Closure, NoBackward
from zosam.optim.vector import know_zeros, zeros_known

if TYPE_CHECKING:
    from zosam.optim.base import SharpnessAware


class Chosen(NamedTuple):
    """The worst candidate: of which probe, and on which side of the weights."""

    probe: int
    sign: int


def worst_of_graphs(optimizer: SharpnessAware, offsets: Sequence[Tensor], closure: Closure) -> Chosen:
    """Leave in `p.grad` the gradient at that of θ ± offset whose loss is highest; two graphs are alive at a time."""
    space, passes = optimizer.active, optimizer._passes
    home, here, buffers = [p.data for p in space.params], space.read(), Buffers(passes.modules.search())
    known = [p for p, zero in zip(space.params, zeros_known(space.params), strict=True) if zero]
    free, taken = space.asides  # the worst candidate so far holds one of them
    worst: Candidate | None = None
    try:
        for probe, offset in enumerate(offsets):
            for sign in (1, -1):
                moved = space.dense(torch.add(here, offset, alpha=sign), free)
                values = [m.to(h.dtype) for h, m in zip(home, moved, strict=True)]
                _stand_at(space.params, values)
                know_zeros(space.params)
                passes.begin_again()
                with buffers.stand_ins() as copies, torch.enable_grad(), NoBackward(), passes.averaged():
                    loss = passes.call(closure)
                if not loss.requires_grad:
                    raise TypeError("Pair() takes the gradient itself: the closure must return the loss, not detached")
                found = optimizer.agreed([loss.detach().to(space.widest).mean()])[0]
                optimizer.note("loss_up" if sign > 0 else "loss_down", found)
                if worst is None or found > worst.found:
                    worst = Candidate(found, Chosen(probe, sign), loss, values, copies)
                    free, taken = taken, free
                del loss
        assert worst is not None
        passes.mean_loss = passes.agreed(worst.loss)
        _stand_at(space.params, worst.values)
        know_zeros(space.params)
        optimizer.zero_grad(set_to_none=True)
        worst.loss.backward()
        passes.averaging.require()
        buffers.settle(worst.buffers)
        passes.loss = worst.loss.detach()
        passes.add(None, forward=2 * len(offsets), backward=1)
    finally:
        _stand_at(space.params, home)
        know_zeros(known)
    return worst.chosen


class Candidate(NamedTuple):
    """A point with its loss, and buffers as its pass has left them."""

    found: float
    chosen: Chosen
    loss: Tensor
    values: list[Tensor]
    buffers: list[Tensor]


class Buffers:
    """The buffers of modules; a graph may keep them, so each pass gets copies of its own."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places = [(m, name, b) for m in modules for name, b in m._buffers.items() if b is not None]

    @contextmanager
    def stand_ins(self) -> Iterator[list[Tensor]]:
        """Modules see copies in here; the list holds them afterwards, as the passes have left them."""
        copies: list[Tensor] = []
        for module, name, buffer in self._places:
            module._buffers[name] = buffer.detach().clone()
        try:
            yield copies
        finally:
            for module, name, buffer in self._places:
                last = module._buffers[name]  # a module may have put another tensor there
                copies.append(buffer if last is None else last)
                module._buffers[name] = buffer

    def settle(self, copies: list[Tensor]) -> None:
        if copies:
            torch._foreach_copy_([buffer for *_, buffer in self._places], copies)


def _stand_at(params: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for p, value in zip(params, values, strict=True):
        p.data = value
    torch.clear_autocast_cache()
