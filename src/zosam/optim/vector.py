"""The active weights of a network as one flat vector: what every direction, norm and copy is made of.

Working on active coordinates alone keeps pruned weights at exactly zero, makes the norm of a perturbation the
norm over what the network really has, and shrinks every copy by the sparsity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from zosam.distributed.fsdp import any_sharded, is_sharded, local, shards


class Coordinates:
    """The active weights of `params` under `masks`, read and written as one vector, in memory order.

    Where ranks hold a part of each parameter (fully_shard), the vector is that of this rank's parts; `whole` gives
    the vector of all, in the order in which one process would have it.
    """

    def __init__(self, params: Sequence[Tensor], masks: Mapping[Tensor, Tensor]) -> None:
        self.params = list(params)
        self.shards = shards(params)  # the ranks that hold the other parts
        self._sharded = any_sharded(params)
        self._parts = [local(p) for p in params]
        self.signature = signature(params, masks)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
        self.device = params[0].device if params else torch.device("cpu")
        self._order = [memory_order(p) for p in self._parts]
        self._views = [_view(p, order) for p, order in zip(self._parts, self._order, strict=True)]
        self._index = [
            None if p not in masks else local(masks[p]).to(p.device).permute(order).reshape(-1).nonzero().squeeze(1)
            for p, order in zip(self.params, self._order, strict=True)
        ]
        self._masked = [i for i, index in enumerate(self._index) if index is not None]
        self._unmasked = [i for i, index in enumerate(self._index) if index is None]
        self.sizes = [p.numel() if i is None else i.numel() for p, i in zip(self._parts, self._index, strict=True)]
        self.total = sum(p.numel() for p in params)
        self._sizes = self._of_all(self.sizes)
        self.whole_sizes = [sum(of_ranks) for of_ranks in zip(*self._sizes, strict=True)]
        self.starts = [sum(of_ranks[: self.shards.rank]) for of_ranks in zip(*self._sizes, strict=True)]

    def __len__(self) -> int:
        return sum(self.sizes)

    def read(self) -> Tensor:
        """A copy of the active weights."""
        return self._join(self._views)

    def write(self, vector: Tensor) -> None:
        """Set the active weights; reading them back gives the same bits."""
        parts = vector.split(self.sizes)
        if self._unmasked:  # all of them in one call
            torch._foreach_copy_([self._views[i] for i in self._unmasked], [parts[i] for i in self._unmasked])
        for i in self._masked:
            self._set(i, self._views[i], parts[i])

    def write_parts(self, parts: Iterable[Tensor]) -> None:
        """The same from parts, one per parameter: no whole vector is needed."""
        for i, (view, part) in enumerate(zip(self._views, parts, strict=True)):
            self._set(i, view, part)

    def versions(self) -> list[int]:
        """A number for each parameter that changes with every write to it."""
        return [_version(p) for p in self.params] if self._sharded else [p._version for p in self.params]

    def write_where(self, vector: Tensor, versions: list[int]) -> bool:
        """Set the weights of parameters that nobody has written since `versions`, wherever they lie by now.

        Whether all were as they had been left; then the weights are the vector.
        """
        places = zip(self._parts, self._views, strict=True)
        if not self._sharded and versions == self.versions() and all(p.data_ptr() == v.data_ptr() for p, v in places):
            self.write(vector)
            return True
        parts = vector.split(self.sizes)
        for i, (p, view) in enumerate(zip(self.params, self._views, strict=True)):
            if local(p).data_ptr() != view.data_ptr():  # moved, as by model.to()
                self._put(i, p.detach(), parts[i])
            elif not versions or _version(p) == versions[i]:
                self._set(i, view, parts[i])
        return False

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

    def dense(self, vector: Tensor) -> list[Tensor]:
        """The vector as tensors shaped and laid out like the parameters, zero at pruned weights."""
        found = []
        for i, part in enumerate(vector.split(self.sizes)):
            param, index = self._parts[i], self._index[i]
            if index is not None:
                part = part.new_zeros(param.numel()).scatter_(0, index, part)
            found.append(part.as_strided(param.shape, param.stride()))
        return found

    def move(self, vector: Tensor, old: Coordinates) -> Tensor:
        """A vector over `old` coordinates as one over these: what left is dropped, what is new is zero."""
        at = {id(p): t for p, t in zip(old.params, old.dense(vector), strict=True)}
        return self.gather([at.get(id(p)) for p in self.params])

    def whole(self, vector: Tensor) -> Tensor:
        """The vector with the parts of all ranks, parameter by parameter; all of them must ask for it."""
        if self.shards.world == 1:
            return vector
        longest = max(sum(sizes) for sizes in self._sizes)
        padded = torch.cat([vector, vector.new_zeros(longest - len(vector))])
        found = self.shards.gather(padded, "vectors")
        parts = [v[: sum(sizes)].split(sizes) for v, sizes in zip(found, self._sizes, strict=True)]
        return torch.cat([part for of_ranks in zip(*parts, strict=True) for part in of_ranks])

    def part(self, whole: Tensor) -> Tensor:
        """What this rank holds of a whole vector."""
        if self.shards.world == 1:
            return whole
        cut = zip(whole.split(self.whole_sizes), self.starts, self.sizes, strict=True)
        return torch.cat([piece[start : start + size] for piece, start, size in cut])

    def _of_all(self, sizes: list[int]) -> list[list[int]]:
        """The sizes that every rank has."""
        mine = torch.tensor(sizes, dtype=torch.int64, device=self.device)
        return [sizes] if self.shards.world == 1 else [s.tolist() for s in self.shards.gather(mine, "sizes")]

    def _flat(self, tensor: Tensor, i: int) -> Tensor:
        tensor = local(tensor)
        dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        return dense.detach().permute(self._order[i]).reshape(-1)

    def _join(self, flats: Sequence[Tensor | None]) -> Tensor:
        parts = []
        for flat, index, size in zip(flats, self._index, self.sizes, strict=True):
            if flat is None:
                parts.append(torch.zeros(size, dtype=self.dtype, device=self.device))
            else:
                parts.append(flat if index is None else flat.index_select(0, index))
                if flat.dtype != self.dtype or flat.device != self.device:
                    parts[-1] = parts[-1].to(self.device, self.dtype)
        return torch.cat(parts) if parts else torch.zeros(0)

    def _set(self, i: int, flat: Tensor, part: Tensor) -> None:
        index = self._index[i]
        if index is None:
            flat.copy_(part)
        else:
            flat.scatter_(0, index, part.to(flat.device, flat.dtype))

    def _put(self, i: int, tensor: Tensor, part: Tensor) -> None:
        tensor = local(tensor)
        flat = self._flat(tensor, i)
        self._set(i, flat, part)
        if flat.data_ptr() != tensor.data_ptr():  # it lies in memory otherwise than its parameter: flat is a copy
            turned = tensor.permute(self._order[i])
            turned.copy_(flat.view(turned.shape))

    def reading_order(self) -> Tensor:
        """Where each entry, parameter by parameter in reading order, stands in a vector: the same in any layout."""
        places, start = [], 0
        for p, order, index, size in zip(self._parts, self._order, self._index, self.sizes, strict=True):
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
    found = [masks.get(p) for p in params]
    if any_sharded(params):
        parts = [(local(p).data_ptr(), None if m is None else _version(m)) for p, m in zip(params, found, strict=True)]
    else:
        parts = [(p.data_ptr(), None if m is None else m._version) for p, m in zip(params, found, strict=True)]
    return tuple((id(p), p.stride(), id(m), *part) for p, m, part in zip(params, found, parts, strict=True))


def _version(tensor: Tensor) -> int:
    """A number that changes with every write: to the tensor or, where ranks hold parts, to this rank's own."""
    return tensor._version + (local(tensor)._version if is_sharded(tensor) else 0)


def _view(param: Tensor, order: list[int]) -> Tensor:
    # detach() shares the version counter: an edit between forward and backward is an error, never a wrong gradient
    try:
        return param.detach().permute(order).view(-1)
    except RuntimeError:
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} and strides {param.stride()} does not fill its memory densely;"
            " make it contiguous before it is optimized"
        ) from None
