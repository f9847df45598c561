"""The active weights of a network as one flat vector: what every direction, norm and copy is made of.

Working on active coordinates alone keeps pruned weights at exactly zero, makes the norm of a perturbation the
norm over what the network really has, and shrinks every copy by the sparsity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor


class Coordinates:
    """The active weights of `params` under `masks`, read and written as one vector, in memory order."""

    def __init__(self, params: Sequence[Tensor], masks: Mapping[Tensor, Tensor]) -> None:
        self.params = list(params)
        self.signature = signature(params, masks)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
        self.device = params[0].device if params else torch.device("cpu")
        self._order = [memory_order(p) for p in params]
        self._views = [_view(p, order) for p, order in zip(self.params, self._order, strict=True)]
        self._index = [
            None if p not in masks else masks[p].to(p.device).permute(order).reshape(-1).nonzero().squeeze(1)
            for p, order in zip(self.params, self._order, strict=True)
        ]
        self.sizes = [p.numel() if i is None else i.numel() for p, i in zip(self.params, self._index, strict=True)]
        self.total = sum(p.numel() for p in params)

    def __len__(self) -> int:
        return sum(self.sizes)

    def read(self) -> Tensor:
        """A copy of the active weights."""
        return self._join(self._views)

    def write(self, vector: Tensor) -> None:
        """Set the active weights; reading them back gives the same bits."""
        self._assign(self._views, vector.split(self.sizes))

    def write_parts(self, parts: Iterable[Tensor]) -> None:
        """The same from parts, one per parameter: no whole vector is needed."""
        self._assign(self._views, parts)

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The active entries of tensors shaped like the parameters; None stands for zeros."""
        return self._join([t if t is None else self._flat(t, i) for i, t in enumerate(tensors)])

    def scatter(self, vector: Tensor, tensors: Sequence[Tensor]) -> None:
        """Set the active entries of tensors shaped like the parameters; the others stay."""
        flats = [self._flat(t, i) for i, t in enumerate(tensors)]
        self._assign(flats, vector.split(self.sizes))
        for i, (flat, t) in enumerate(zip(flats, tensors, strict=True)):
            if flat.data_ptr() != t.data_ptr():  # t lies in memory otherwise than its parameter: flat was a copy
                turned = t.permute(self._order[i])
                turned.copy_(flat.view(turned.shape))

    def spread(self, values: Sequence[float]) -> Tensor:
        """A vector that holds `values[i]` at every coordinate of parameter i."""
        sizes = torch.tensor(self.sizes, device=self.device)
        return torch.tensor(values, dtype=self.dtype, device=self.device).repeat_interleave(sizes)

    def move(self, vector: Tensor, old: Coordinates) -> Tensor:
        """A vector over `old` coordinates as one over these: what left is dropped, what is new is zero."""
        dense = [torch.zeros_like(p, dtype=self.dtype) for p in old.params]
        old.scatter(vector, dense)
        at = {id(p): t for p, t in zip(old.params, dense, strict=True)}
        return self.gather([at.get(id(p)) for p in self.params])

    def _flat(self, tensor: Tensor, i: int) -> Tensor:
        dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        return dense.detach().permute(self._order[i]).reshape(-1)

    def _join(self, flats: Sequence[Tensor | None]) -> Tensor:
        parts = []
        for flat, index, size in zip(flats, self._index, self.sizes, strict=True):
            if flat is None:
                parts.append(torch.zeros(size, dtype=self.dtype, device=self.device))
            else:
                part = flat if index is None else flat.index_select(0, index)
                parts.append(part.to(self.device, self.dtype))
        return torch.cat(parts) if parts else torch.zeros(0)

    def _assign(self, flats: Sequence[Tensor], parts: Iterable[Tensor]) -> None:
        for flat, index, part in zip(flats, self._index, parts, strict=True):
            if index is None:
                flat.copy_(part)
            else:
                flat.scatter_(0, index, part.to(flat.device, flat.dtype))


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions of `tensor` from the slowest to the fastest, as it lies in memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: -strides[d])


def signature(params: Sequence[Tensor], masks: Mapping[Tensor, Tensor]) -> tuple[object, ...]:
    """Changes exactly when the coordinates would: other parameters, storage, layout or masks."""
    return tuple(
        (id(p), p.data_ptr(), p.stride(), None if (m := masks.get(p)) is None else (id(m), m._version)) for p in params
    )


def _view(param: Tensor, order: list[int]) -> Tensor:
    # detach() shares the version counter: an edit between forward and backward is an error, never a wrong gradient
    try:
        return param.detach().permute(order).view(-1)
    except RuntimeError:
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} and strides {param.stride()} does not fill its memory densely;"
            " make it contiguous before it is optimized"
        ) from None
