"""Weights as the last step has left them: whether somebody else has written them since, or put others there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from zosam.distributed.fsdp import any_sharded, local


class Written:
    """Remembers the weights of a sparse model by marks that change with every write, and by samples where none would.

    A write through `.data` leaves no mark; so one pruned entry of every layer is looked at as well: it must be zero.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        self._weights, self._masks = weights, masks
        self._in_parts = any_sharded(weights.values())
        names = {id(w): n for n, w in weights.items()}
        held = [(m, key, p) for m in model.modules() for key, p in m._parameters.items() if id(p) in names]
        self._owners = [] if self._in_parts else [(m, key, names[id(p)]) for m, key, p in held]
        self._marks: dict[str, tuple[int, int]] = {}
        self._samples: dict[str, tuple[tuple[int, int], Tensor | None]] = {}
        self.note()

    def note(self) -> None:
        """They are right as they are now."""
        self._marks = self._now()
        if self._in_parts:
            return
        for name, mask in self._masks.items():
            key = (mask._version, self._marks[name][1])
            if self._samples.get(name, (None,))[0] != key:
                self._samples[name] = key, _pruned_entry(self._weights[name], mask)

    def same(self, name: str) -> bool:
        return self._now()[name] == self._marks[name]

    def changed(self, waits: bool) -> list[str]:
        """Layers that somebody else has written; `waits`: whether it may wait for a device to look at samples."""
        found = [n for n, mark in self._now().items() if mark != self._marks[n]]
        if found or self._in_parts:
            return found
        samples = [s for _, s in self._samples.values() if s is not None]
        if not samples or not (waits or all(s.device.type == "cpu" for s in samples)):
            return found
        return list(self._weights) if bool(torch.stack(samples).any()) else found

    def say_if_replaced(self, method: str) -> None:
        """Say which weights are in the model no more, but others in their place."""
        gone = [n for module, key, n in self._owners if module._parameters.get(key) is not self._weights[n]]
        if gone:
            warnings.warn(
                f"{method}: another parameter is in the place of {', '.join(gone[:3])} (was a state loaded with"
                " assign=True?), and neither masks nor optimizer reach it: make both anew",
                stacklevel=5,
            )

    def _now(self) -> dict[str, tuple[int, int]]:
        """For each weight two numbers, one of which changes when somebody writes to it or puts other data in it."""
        parts = {n: local(w) for n, w in self._weights.items()} if self._in_parts else self._weights
        return {n: (part._version, part.data_ptr()) for n, part in parts.items()}


def _pruned_entry(weight: Tensor, mask: Tensor) -> Tensor | None:
    """One of the entries that the mask prunes, as a view; None if there is none."""
    flat = mask.reshape(-1).view(torch.uint8)
    at = int(flat.argmin()) if flat.numel() else 0
    if not flat.numel() or bool(flat[at]):
        return None
    return weight.detach()[tuple(int(i) for i in torch.unravel_index(torch.tensor(at), weight.shape))]
