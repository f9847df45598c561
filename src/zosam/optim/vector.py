"""The active weights of a network as one flat vector: what every direction, norm and copy is made of.

Working on active weights alone keeps pruned ones at exactly zero, makes the norm of a perturbation the norm over what
the network really has, and shrinks every copy by the sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from zosam.distributed.fsdp import any_sharded, is_sharded, local, shards
from zosam.optim.active import masks_by_weight


class ActiveWeights:
    """The active weights of `params`, read and written as one vector, in memory order.

    `masks` says what is active, instead of the masks that the parameters have. Where ranks hold a part of each
    parameter (fully_shard), the vector is that of this rank's parts, and lengths are those of the vector of all.
    """

    def __init__(self, params: Sequence[Tensor], masks: Mapping[Tensor, Tensor] | None = None) -> None:
        self.params = list(params)
        self._refuse_complex()
        found = find_masks(params, masks)
        self.shards = shards(params)  # the ranks that hold the other parts
        self._sharded = any_sharded(params)
        self._parts = [local(p) for p in params]
        self.signature = signature(params, found)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
        self.device = params[0].device if params else torch.device("cpu")
        self._order = [memory_order(p) for p in self._parts]
        self._views = [_view(p, order) for p, order in zip(self._parts, self._order, strict=True)]
        self._places = [v.data_ptr() for v in self._views]
        self._index = [
            None if m is None else local(m).to(p.device).permute(order).reshape(-1).nonzero().squeeze(1)
            for p, m, order in zip(self.params, found, self._order, strict=True)
        ]
        self._masked = [i for i, index in enumerate(self._index) if index is not None]
        self._unmasked = [i for i, index in enumerate(self._index) if index is None]
        self._spread: tuple[list[float], Tensor] | None = None
        self.sizes = [p.numel() if i is None else i.numel() for p, i in zip(self._parts, self._index, strict=True)]
        self.n_weights = sum(p.numel() for p in params)  # pruned ones too
        of_ranks = self._sizes_of_ranks()
        self.full_sizes = [sum(sizes) for sizes in zip(*of_ranks, strict=True)]  # with the parts of all ranks
        self.starts = [sum(sizes[: self.shards.rank]) for sizes in zip(*of_ranks, strict=True)]

    def __len__(self) -> int:
        return sum(self.sizes)

    # --- weights, and tensors shaped like them -----------------------------------------------------------------------

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

    def versions(self) -> list[int]:
        """A number for each parameter that changes with every write to it."""
        return [_version(p) for p in self.params] if self._sharded else [p._version for p in self.params]

    def write_where(self, vector: Tensor, versions: list[int]) -> bool:
        """Set the weights of parameters that nobody has written since `versions`, wherever they lie by now.

        Whether all were as they had been left; then the weights are the vector.
        """
        if not self._sharded and versions == self.versions() and self._places == [p.data_ptr() for p in self._parts]:
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
        """A vector that holds `values[i]` at every weight of parameter i."""
        if self._spread is None or self._spread[0] != list(values):  # else nothing has to reach the device again
            full = [torch.full((n,), v, dtype=self.dtype) for v, n in zip(values, self.sizes, strict=True)]
            self._spread = list(values), torch.cat(full).to(self.device) if full else torch.zeros(0)
        return self._spread[1]

    def dense(self, vector: Tensor) -> list[Tensor]:
        """The vector as tensors shaped and laid out like the parameters, zero at pruned weights."""
        found = []
        for i, part in enumerate(vector.split(self.sizes)):
            param, index = self._parts[i], self._index[i]
            if index is not None:
                part = part.new_zeros(param.numel()).scatter_(0, index, part)
            found.append(part.as_strided(param.shape, param.stride()))
        return found

    # --- lengths and angles: of the vector of all ranks ---------------------------------------------------------------

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """The inner product, in the vectors' own precision also where a step is taken under autocast."""
        if torch.is_autocast_enabled(a.device.type):
            with torch.autocast(a.device.type, enabled=False):
                return self.shards.sum(a @ b, "norms")
        return self.shards.sum(a @ b, "norms")

    def norm(self, vector: Tensor) -> Tensor:
        length: Tensor = vector.norm() if self.shards.world == 1 else self.dot(vector, vector).sqrt()
        return length

    def unit(self, vector: Tensor) -> Tensor:
        """The vector at length 1; zero stays zero, and no square under- or overflows on the way."""
        if not vector.numel() and self.shards.world == 1:
            return vector
        tiny = torch.finfo(vector.dtype).tiny
        largest = vector.abs().amax() if vector.numel() else vector.new_zeros(())
        scaled = vector / self.shards.max(largest, "norms").clamp_min(tiny)
        return scaled / self.norm(scaled).clamp_min(tiny)

    def cosine(self, a: Tensor, b: Tensor) -> Tensor:
        return self.dot(self.unit(a), self.unit(b))

    # --- filters: the rows of weights that share an output; a tensor of one dimension is one filter -------------------

    def filter_norms(self) -> Tensor:
        """For each active weight the norm of the filter that it belongs to."""
        norms = [
            torch.linalg.vector_norm(p.detach(), dim=tuple(range(1, p.dim()))) if p.dim() > 1 else self._norm_of(p)
            for p in self._parts
        ]
        return torch.cat([n.to(self.device, self.dtype) for n in norms]).index_select(0, self._filter)

    @cached_property
    def filter_sizes(self) -> Tensor:
        """For each active weight how many active weights its filter has."""
        counts = torch.bincount(self._filter, minlength=1).to(self.dtype)
        if self._sharded:  # rows lie whole on one rank; tensors of one dimension are shared out
            total = self.spread([float(n) for n in self.full_sizes])
            rows = self.spread([float(p.dim() > 1) for p in self._parts])
            return torch.where(rows > 0, counts.index_select(0, self._filter), total)
        return counts.index_select(0, self._filter)

    def filter_sums(self, vector: Tensor) -> Tensor:
        """For each active weight the sum of the vector over its filter."""
        filters = sum(p.shape[0] if p.dim() > 1 else 1 for p in self._parts)
        sums = vector.new_zeros(filters).index_add_(0, self._filter, vector)
        return sums.index_select(0, self._filter)

    @cached_property
    def _filter(self) -> Tensor:
        """For each active weight the number of its filter, counted through all parameters."""
        found, first = [], 0
        for p, order, index in zip(self._parts, self._order, self._index, strict=True):
            rows = p.shape[0] if p.dim() > 1 else 1
            number = torch.arange(first, first + rows, device=self.device)
            flat = number.view([rows, *[1] * (p.dim() - 1)][: p.dim()]).expand(p.shape).permute(order).reshape(-1)
            found.append(flat if index is None else flat.index_select(0, index.to(self.device)))
            first += rows
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)

    def _norm_of(self, p: Tensor) -> Tensor:
        square = self.shards.sum(p.detach().square().sum(), "norms") if self._sharded else p.detach().square().sum()
        return square.sqrt().view(1)

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _refuse_complex(self) -> None:
        if any(p.is_complex() for p in self.params):
            raise TypeError(
                "a parameter is complex, and lengths here are those of real numbers: keep it as torch.view_as_real(p),"
                " or give it a group with perturb=False"
            )

    def _sizes_of_ranks(self) -> list[list[int]]:
        mine = torch.tensor(self.sizes, dtype=torch.int64, device=self.device)
        return [self.sizes] if self.shards.world == 1 else [s.tolist() for s in self.shards.gather(mine, "sizes")]

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
        if tensor.layout is not torch.strided:
            raise TypeError(
                "this optimizer changes the gradient that the base shall use, and that one is sparse: make the layer"
                " with sparse=False, or give it a group with perturb=False"
            )
        flat = self._flat(tensor, i)
        self._set(i, flat, part)
        if flat.data_ptr() != tensor.data_ptr():  # it lies in memory otherwise than its parameter: flat is a copy
            turned = tensor.permute(self._order[i])
            turned.copy_(flat.view(turned.shape))


def find_masks(params: Sequence[Tensor], masks: Mapping[Tensor, Tensor] | None = None) -> list[Tensor | None]:
    """What is active of each parameter; None: all of it."""
    return masks_by_weight(params) if masks is None else [masks.get(p) for p in params]


def signature(params: Sequence[Tensor], masks: Sequence[Tensor | None]) -> tuple[object, ...]:
    """Changes exactly when the active weights would: other parameters, storage, layout or masks."""
    if any_sharded(params):
        parts = [(local(p).data_ptr(), None if m is None else _version(m)) for p, m in zip(params, masks, strict=True)]
    else:
        parts = [(p.data_ptr(), None if m is None else m._version) for p, m in zip(params, masks, strict=True)]
    return tuple((id(p), p.stride(), id(m), *part) for p, m, part in zip(params, masks, parts, strict=True))


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions of `tensor` from the slowest to the fastest, as it lies in memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: -strides[d])


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
