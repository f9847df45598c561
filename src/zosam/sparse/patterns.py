"""Structure in a mask: single weights, N of every M, or blocks of B neighbours.

Neighbours lie along dimension 1 of the weight (the inputs of a linear layer, the input channels of a convolution at
the same kernel position), where hardware and kernels look for them. A method works on units: it scores, drops and
grows them as if they were weights.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from zosam.sparse.top_k import top


class Unstructured:
    """Every weight stands alone: a unit is a weight."""

    kind = name = "unstructured"
    size = 1  # weights per unit

    def problem(self, name: str, weight: Tensor, transposed: bool) -> str:
        """Why this structure does not fit a weight, if so."""
        return ""

    def fold(self, score: Tensor) -> Tensor:
        """One score per unit."""
        return score

    def fold_mask(self, mask: Tensor) -> Tensor:
        return mask

    def unfold(self, mask: Tensor, like: Tensor) -> Tensor:
        """A mask of units as a mask of weights, laid out in memory like the weight."""
        return mask

    def pick(self, score: Tensor, k: int) -> Tensor:
        """A mask of the k best units."""
        return top(score, k)


class Grouped(Unstructured):
    """Weights in groups of neighbours."""

    def __init__(self, group: int) -> None:
        self.group = group

    def problem(self, name: str, weight: Tensor, transposed: bool) -> str:
        if transposed:
            return f"{name}, which keeps its inputs first"
        width = weight.shape[1]
        return f"{name} ({width} inputs, no multiple of {self.group})" if width % self.group else ""

    def groups(self, tensor: Tensor) -> Tensor:
        return tensor.movedim(1, -1).reshape(-1, self.group)

    def unfold(self, mask: Tensor, like: Tensor) -> Tensor:
        whole = mask.reshape(like.movedim(1, -1).shape).movedim(-1, 1)
        return torch.empty_like(like, dtype=torch.bool).copy_(whole)


class Block(Grouped):
    """Blocks of neighbours live and die together; the score of one is the sum over its weights."""

    kind = "block"

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.size, self.name = group, f"block:{group}"

    def fold(self, score: Tensor) -> Tensor:
        return self.groups(score).sum(1)

    def fold_mask(self, mask: Tensor) -> Tensor:
        return self.groups(mask)[:, 0]

    def unfold(self, mask: Tensor, like: Tensor) -> Tensor:
        return super().unfold(mask[:, None].expand(-1, self.group), like)


class NM(Grouped):
    """N of every M neighbours are kept, such as 2:4: that fixes the density of every layer."""

    kind = "n:m"

    def __init__(self, n: int, m: int) -> None:
        super().__init__(m)
        self.name, self.n, self.density = f"{n}:{m}", n, n / m

    def fold(self, score: Tensor) -> Tensor:
        return self.groups(score)

    def fold_mask(self, mask: Tensor) -> Tensor:
        return self.groups(mask)

    def pick(self, score: Tensor, k: int) -> Tensor:
        return torch.zeros_like(score, dtype=torch.bool).scatter_(1, score.topk(self.n, dim=1).indices, True)


def structure(spec: str | None) -> Unstructured:
    """The structure that `spec` names: None, "2:4" (any N:M) or "block:4"."""
    if spec is None:
        return Unstructured()
    block, nm = re.fullmatch(r"block:([1-9]\d*)", spec), re.fullmatch(r"([1-9]\d*):([1-9]\d*)", spec)
    if block and int(block[1]) > 1:
        return Block(int(block[1]))
    if nm and int(nm[1]) < int(nm[2]):
        return NM(int(nm[1]), int(nm[2]))
    raise ValueError(
        f'pattern must be N:M with N below M such as "2:4", or blocks of 2 or more such as "block:4", not {spec!r}'
    )
