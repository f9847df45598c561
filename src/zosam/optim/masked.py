"""Which weights are masked, and what is known to be zero where they are.

Masks belong to the weights: a sparse method sets them, and optimizers, kernels and files look them up here, so it does
not matter which of these objects was made first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class _Entry:
    weight: weakref.ref[Tensor]
    mask: Tensor
    zeros: tuple[int, ...] | None = None  # the weight, as it was when its pruned entries were known to be zero
    gradient: tuple[int, ...] | None = None  # and so a gradient that is on its way


_entries: dict[int, _Entry] = {}  # by id: tensors compare by value, and this is the fastest way to find one


def set_mask(weight: Tensor, mask: Tensor) -> None:
    """Let `mask` say which entries of `weight` are active; edit it in place, and everybody sees the change."""
    if mask.shape != weight.shape:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit a weight of shape {tuple(weight.shape)}")
    key = id(weight)
    _entries[key] = _Entry(weakref.ref(weight, lambda gone: _drop(key, gone)), mask)


def mask_of(weight: Tensor) -> Tensor | None:
    """The mask of a weight; None: all of it is active. A copy of a weight has none of its own."""
    entry = _entry(weight)
    return None if entry is None else entry.mask


def masks_by_weight(weights: Iterable[Tensor]) -> list[Tensor | None]:
    """The mask of each weight, all at one go."""
    entries = [(w, _entries.get(id(w))) for w in weights]
    return [e.mask if e is not None and e.weight() is w else None for w, e in entries]


def masks_of(weights: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """The masks of those that have one."""
    found = list(weights)
    return {w: mask for w, mask in zip(found, masks_by_weight(found), strict=True) if mask is not None}


def forget(weight: Tensor) -> None:
    """Nobody keeps this weight sparse any more; its values stay as they are."""
    if mask_of(weight) is not None:
        del _entries[id(weight)]


def know_zeros(weights: Iterable[Tensor]) -> None:
    """These are zero where their masks prune them, until somebody writes to them: nobody need look."""
    for weight in weights:
        entry = _entry(weight)
        if entry is not None:
            entry.zeros = _state(weight, entry)


def zeros_known(weight: Tensor) -> bool:
    """Whether a weight is as it was when it was known to be zero where its mask prunes it."""
    entry = _entry(weight)
    return entry is not None and entry.zeros is not None and entry.zeros == _state(weight, entry)


def send_masked(weight: Tensor, gradient: Tensor) -> None:
    """This gradient, on its way to the weight in a backward, is zero where the weight is pruned."""
    entry = _entry(weight)
    if entry is not None:
        entry.gradient = _sent(gradient, entry)


def came_masked(weight: Tensor, gradient: Tensor) -> bool:
    """Whether the gradient that has come is the one that was sent, and nothing was added to it."""
    entry = _entry(weight)
    return entry is not None and entry.gradient is not None and entry.gradient == _sent(gradient, entry)


def _state(weight: Tensor, entry: _Entry) -> tuple[int, ...] | None:
    inference = weight.is_inference() or entry.mask.is_inference()  # these do not count who writes to them
    return None if inference else (weight._version, weight.data_ptr(), entry.mask._version)


def _sent(gradient: Tensor, entry: _Entry) -> tuple[int, ...]:
    # memory may be used again by a later backward, but not while this one lasts
    return torch._C._current_graph_task_id(), gradient.data_ptr(), gradient._version, entry.mask._version


def _entry(weight: Tensor) -> _Entry | None:
    entry = _entries.get(id(weight))
    return entry if entry is not None and entry.weight() is weight else None


def _drop(key: int, gone: weakref.ref[Tensor]) -> None:
    if key in _entries and _entries[key].weight is gone:  # not the mask of a newer weight at the same address
        del _entries[key]
