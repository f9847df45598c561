"""The other processes of a training: who they are, and what they agree on.

All that this package says to `torch.distributed` is in this room. Gradients are averaged by the
module that computes them, DistributedDataParallel or fully_shard; the optimizers exchange numbers.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """The processes of a group, as one of them sees it; without a group it is alone, and nothing is ever sent.

    `sent` counts the bytes that this process has handed over, by what they were for.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world = 1 if group is None else dist.get_world_size(group)
        self.sent: Counter[str] = Counter()

    def sum(self, values: Tensor, why: str) -> Tensor:
        return self._reduced(values, "SUM", why)

    def max(self, values: Tensor, why: str) -> Tensor:
        return self._reduced(values, "MAX", why)

    def mean(self, values: Tensor, why: str) -> Tensor:
        """The mean over all ranks, the same bits on each of them."""
        return values if self.world == 1 else self.sum(values, why) / self.world

    def all_of(self, numbers: Sequence[float], device: torch.device, why: str) -> list[float]:
        """The numbers of every rank, one after another."""
        if self.world == 1:
            return list(numbers)
        found = self.gather(torch.tensor(numbers, dtype=torch.float64, device=device), why)
        return [number for part in found for number in part.tolist()]

    def gather(self, values: Tensor, why: str) -> list[Tensor]:
        """The tensor of every rank, which must have one shape on all of them."""
        if self.world == 1:
            return [values]
        found = [torch.empty_like(values) for _ in range(self.world)]
        dist.all_gather(found, values.contiguous(), group=self.group)
        self._count(values, why)
        return found

    def any(self, *flags: bool) -> list[bool]:
        """For each question whether some rank says yes."""
        return [bool(f) for f in self.max(torch.tensor(flags, dtype=torch.int64), "flags")]

    def lead(self, work: Callable[[], T]) -> T | None:
        """Let rank 0 alone do it, and the others wait; if it fails there, all ranks stop and rank 0 says why."""
        failure: BaseException | None = None
        found: T | None = None
        if self.rank == 0:
            try:
                found = work()
            except BaseException as error:
                if self.world == 1:
                    raise
                failure = error
        if any(self.any(failure is not None)):
            raise failure if failure is not None else SystemExit(2)
        return found

    def _reduced(self, values: Tensor, how: str, why: str) -> Tensor:
        if self.world == 1:
            return values
        total = values.detach().clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, how), group=self.group)
        self._count(total, why)
        return total

    def _count(self, values: Tensor, why: str) -> None:
        self.sent[why] += values.numel() * values.element_size()

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self  # a group is not a thing to copy

    def __reduce__(self) -> tuple[Any, ...]:
        return (Ranks, ()) if self.group is None else (current, ())


ALONE = Ranks()
_everybody = ALONE
# whether this process has joined others: torch's own answer, for those who ask in every step
joins_others: Callable[[], bool] = dist.is_initialized if dist.is_available() else bool


def current() -> Ranks:
    """All processes of the default group, if there is one; else this process alone."""
    global _everybody
    if not joins_others():
        return ALONE
    if _everybody.group is not dist.group.WORLD:
        _everybody = Ranks(dist.group.WORLD)
    return _everybody


def leads() -> bool:
    """Whether this process is the first of those that torchrun has started, or was not started by it."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK") == "0"


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun has started beside this one, each with its device, and leave them at the end."""
    started = dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1
    if not started or dist.is_initialized():
        yield current()
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://"))
    if os.environ["GROUP_WORLD_SIZE"] == "1":  # else machines may count tries differently
        # the store still holds the addresses of a try before this one (github.com/pytorch/pytorch/issues/135712)
        store = PrefixStore(f"try {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    backend = "gloo"
    if device.type != "cpu":
        backend = f"cpu:gloo,{device.type}:{dist.Backend.default_device_backend_map[device.type]}"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield current()
    finally:
        leave()


def leave() -> None:
    """Leave the other processes, and end the threads that spoke to them.

    A thread of gloo's that still lets go of a gradient while Python ends aborts the process. The threads end with the
    last reference to their group, which a model may hold in a cycle.
    """
    global _everybody
    _everybody.group = None  # whoever has been given these ranks still holds them
    _everybody = ALONE
    dist.destroy_process_group()
    gc.collect()
