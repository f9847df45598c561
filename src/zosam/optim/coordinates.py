"""The active weights of a network as one flat vector: what every direction, norm and copy is made of.

Working on active coordinates alone keeps pruned weights at exactly zero, makes the norm of a perturbation the
norm over what the network really has, and shrinks every copy by the sparsity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from zosam.ranks import ALONE


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
        self.shards = ALONE  # the ranks that hold the other parts of these parameters

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

    def versions(self) -> list[int]:
        """A number for each parameter that changes with every write to it."""
        return [p._version for p in self.params]

    def write_where(self, vector: Tensor, versions: list[int]) -> None:
        """Set the weights of parameters that nobody has written since `versions`, wherever they lie by now."""
        parts = vector.split(self.sizes)
        for i, (p, view) in enumerate(zip(self.params, self._views, strict=True)):
            if p.data_ptr() != view.data_ptr():  # moved, as by model.to()
                self._put(i, p.detach(), parts[i])
            elif not versions or p._version == versions[i]:
                self._set(i, view, parts[i])

    def gather(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The active entries of tensors shaped like the parameters; None stands for zeros."""
        return self._join([t if t is None else self._flat(t, i) for i, t in enumerate(tensors)])

    def scatter(self, vector: Tensor, tensors: Sequence[Tensor | None]) -> None:
        """Set the active entries of tensors shaped like the parameters; the others stay, and so does None."""
        for i, (t, part) in enumerate(zip(tensors, vector.split(self.sizes), strict=True)):
            if t is not None:
                self._put(i, t, part)

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
        for i, (flat, part) in enumerate(zip(flats, parts, strict=True)):
            self._set(i, flat, part)

    def _set(self, i: int, flat: Tensor, part: Tensor) -> None:
        index = self._index[i]
        if index is None:
            flat.copy_(part)
        else:
            flat.scatter_(0, index, part.to(flat.device, flat.dtype))

    def _put(self, i: int, tensor: Tensor, part: Tensor) -> None:
        flat = self._flat(tensor, i)
        self._set(i, flat, part)
        if flat.data_ptr() != tensor.data_ptr():  # it lies in memory otherwise than its parameter: flat is a copy
            turned = tensor.permute(self._order[i])
            turned.copy_(flat.view(turned.shape))

    def reading_order(self) -> Tensor:
        """Where each entry, parameter by parameter in reading order, stands in a vector: the same in any layout."""
        places, start = [], 0
        for p, order, index, size in zip(self.params, self._order, self._index, self.sizes, strict=True):
            name = torch.arange(p.numel(), device=self.device).view(p.shape).permute(order).reshape(-1)
            places.append(start + (name if index is None else name[index.to(self.device)]).argsort())
            start += size
        return torch.cat(places) if places else torch.zeros(0, dtype=torch.long)


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
