"""How far a moving mask has explored: weights ever active, and overlap of masks over time."""

from __future__ import annotations

from typing import Any

import torch

from zosam.sparse.base import Sparsity
from zosam.sparse.save import pack, unpack


class Exploration:
    """Watches a method's masks: make one to switch it on, it costs one bit per weight and mask remembered.

        explored = Exploration(sparse)
        ...                              # training
        explored.rate                    # ITOP rate: the share of masked weights that have ever been active
        explored.history                 # (step, overlap with the mask before, overlap with the first mask)

    Liu et al., "Do we actually need dense over-parameterization? In-time over-parameterization in sparse training",
    ICML 2021. An overlap is the share of the later mask's weights that the earlier one has too.
    """

    def __init__(self, sparse: Sparsity) -> None:
        self.sparse = sparse
        self.first = {n: pack(m) for n, m in sparse.masks.items()}
        self.last, self.ever = dict(self.first), dict(self.first)
        self.history: list[tuple[int, float, float]] = []
        sparse.watchers.append(self.note)

    def note(self) -> None:
        """Take note of the masks of now."""
        now = {n: pack(m) for n, m in self.sparse.masks.items()}
        self.history.append((self.sparse.steps, _overlap(now, self.last), _overlap(now, self.first)))
        self.last = now
        self.ever = {n: self.ever[n] | bits for n, bits in now.items()}

    @property
    def rate(self) -> float:
        total = sum(m.numel() for m in self.sparse.masks.values())
        return sum(_ones(bits) for bits in self.ever.values()) / total

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": dict(self.first),
            "last": dict(self.last),
            "ever": dict(self.ever),
            "history": list(self.history),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["first"].keys() != self.first.keys():
            raise ValueError("this exploration is that of another model or setting")
        self.first, self.last, self.ever = (dict(state[k]) for k in ("first", "last", "ever"))
        self.history = [(int(step), float(a), float(b)) for step, a, b in state["history"]]


def _ones(bits: torch.Tensor) -> int:
    return int(unpack(bits, (8 * bits.numel(),)).sum())


def _overlap(now: dict[str, torch.Tensor], then: dict[str, torch.Tensor]) -> float:
    both = sum(_ones(bits & then[n]) for n, bits in now.items())
    return both / max(1, sum(_ones(bits) for bits in now.values()))
