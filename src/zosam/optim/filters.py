"""Filters: the rows of weights that share an output; a tensor of one dimension is one filter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from zosam.distributed.ranks import Ranks


class Filters:
    """What each active weight asks of the filter that it belongs to.

    `orders` and `indices` say how the vector of active weights runs through each parameter: see `ActiveWeights`. Where
    `ranks` hold parts (fully_shard), a row lies whole on one of them, and a tensor of one dimension is shared out.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        orders: Sequence[list[int]],
        indices: Sequence[Tensor | None],
        ranks: Ranks,
        like: Tensor,
    ) -> None:
        self._parts, self._ranks, self._like = parts, ranks, like
        rows = [p.shape[0] if p.dim() > 1 else 1 for p in parts]
        self._count = sum(rows)
        shared = [torch.full((n,), p.dim() < 2) for p, n in zip(parts, rows, strict=True)]
        self._shared = torch.cat(shared or [torch.zeros(0, dtype=torch.bool)]).to(like.device)  # filter by filter
        found, first = [torch.zeros(0, dtype=torch.long, device=like.device)], 0
        for p, n, order, index in zip(parts, rows, orders, indices, strict=True):
            number = torch.arange(first, first + n, device=like.device)
            flat = number.view([n, *[1] * (p.dim() - 1)][: p.dim()]).expand(p.shape).permute(order).reshape(-1)
            found.append(flat if index is None else flat.index_select(0, index.to(like.device)))
            first += n
        self._filter = torch.cat(found)  # of each active weight, counted through all parameters

    def norms(self) -> Tensor:
        """For each active weight the norm of its filter."""
        found = [
            torch.linalg.vector_norm(p.detach(), dim=tuple(range(1, p.dim())))
            if p.dim() > 1
            else p.detach().square().sum().view(1)
            for p in self._parts
        ]
        values = self._with_other_ranks(torch.cat([self._like, *(n.to(self._like) for n in found)]))
        return torch.where(self._shared, values.sqrt(), values).index_select(0, self._filter)

    def sums(self, vector: Tensor) -> Tensor:
        """For each active weight the sum of the vector over its filter."""
        sums = vector.new_zeros(self._count).index_add_(0, self._filter, vector)
        return self._with_other_ranks(sums).index_select(0, self._filter)

    @cached_property
    def sizes(self) -> Tensor:
        """For each active weight how many active weights its filter has."""
        return self.sums(self._like.new_ones(len(self._filter)))

    def _with_other_ranks(self, values: Tensor) -> Tensor:
        """The values of filters, those of shared ones summed over all ranks."""
        if self._ranks.world > 1:
            values[self._shared] = self._ranks.sum(values[self._shared], "norms")
        return values


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions of `tensor` from the slowest to the fastest, as it lies in memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: -strides[d])


def as_vector(param: Tensor, order: list[int]) -> Tensor:
    """The parameter as a vector, in memory order."""
    # detach() shares the version counter: an edit between forward and backward is an error, never a wrong gradient
    try:
        return param.detach().permute(order).view(-1)
    except RuntimeError:
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} and strides {param.stride()} does not fill its memory densely;"
            " make it contiguous before it is optimized"
        ) from None
