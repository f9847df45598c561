"""Two candidates with a graph each: run the model at two sets of weights, then go back through one of them.

Weights must not be edited between a forward and its backward, so each candidate is a tensor of its own, θ ± ε, that
stands in for the parameter while the closure runs; its gradient flows on to the parameter. Buffers get stand-ins too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

Buffers = list[tuple[nn.Module, str, Tensor, Tensor]]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as in malloc.h


@cache
def keep_freed_memory() -> None:
    """Tell the C library to keep, for this process, memory that was freed.

    Every step frees two graphs. glibc would hand the pages at the end of its heap back to the system and take them
    again, one by one, in the next step, which is no small part of a forward pass. Without glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)  # where glibc's own rule ends; larger pieces it returns at once, as ever
    mallopt(M_TRIM_THRESHOLD, -1)  # never


@contextmanager
def standing_in(tensors: Mapping[Tensor, Tensor]) -> Iterator[Buffers]:
    """Every module called in here sees `tensors[p]` for its parameter p, and copies of its buffers.

    Yields the list of (module, name, buffer, its copy as the passes have left it).
    """
    params: list[tuple[nn.Module, str, nn.Parameter | None]] = []
    buffers: Buffers = []
    seen: set[nn.Module] = set()

    def swap(module: nn.Module, inputs: object) -> None:
        if module in seen:  # and so are its parts
            return
        for part in module.modules():
            if part in seen:
                continue
            seen.add(part)
            for name, p in part._parameters.items():
                if p is not None and p in tensors:
                    params.append((part, name, p))
                    part._parameters[name] = tensors[p]  # type: ignore[assignment]
            for name, b in part._buffers.items():
                if b is not None:
                    copy = b.detach().clone()
                    buffers.append((part, name, b, copy))
                    part._buffers[name] = copy

    hook = register_module_forward_pre_hook(swap)
    try:
        yield buffers
    finally:
        hook.remove()
        for module, name, p in params:
            module._parameters[name] = p
        for i, (module, name, b, _) in enumerate(buffers):
            last = module._buffers[name]  # a module may have put another tensor there
            buffers[i] = (module, name, b, last if last is not None else b)
            module._buffers[name] = b
    missed = len(tensors) - len({p for _, _, p in params})
    if missed:
        raise RuntimeError(
            f"pair=True cannot stand in for {missed} of {len(tensors)} parameters: they are in no module that the"
            " closure calls; leave pair out, or give them a group with perturb=False"
        )


@torch.no_grad()
def settle(buffers: Buffers) -> None:
    """Let the buffers be as that candidate's pass has left them."""
    if buffers:
        torch._foreach_copy_([buffer for _, _, buffer, _ in buffers], [value for *_, value in buffers])
