"""Which weights are active, and these as one flat vector: what every direction, norm and copy is made of.

Working on active weights alone keeps pruned ones at exactly zero, makes the norm of a perturbation the norm over what
the network really has, and shrinks every copy by the sparsity.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import is_

import torch
from torch import Tensor

from zosam.distributed.fsdp import any_sharded, local, shards
from zosam.machine import widest
from zosam.optim.filters import Filters, as_vector, memory_order


@dataclass(slots=True)
class MaskOf:
    """The mask of a weight, and what is known to be zero where it prunes."""

    weight: weakref.ref[Tensor]
    mask: Tensor
    zeros: tuple[int, ...] = ()  # the weight, as it was when it was known to be zero there
    gradient: tuple[int, ...] = ()  # and so a gradient that is on its way


entries: dict[int, MaskOf] = {}  # by id: tensors compare by value, and this is the fastest way to find one


def masks_by_weight(weights: Iterable[Tensor]) -> list[Tensor | None]:
    """The mask of each weight, all at one go."""
    found = [(w, entries.get(id(w))) for w in weights]
    return [e.mask if e is not None and e.weight() is w else None for w, e in found]


def know_zeros(weights: Iterable[Tensor]) -> None:
    """These are zero where their masks prune them, until somebody writes to them: nobody need look."""
    for w in weights:
        e = entries.get(id(w))
        if e is not None and e.weight() is w and not w.is_inference():  # which does not count who writes to it
            e.zeros = w._version, w.data_ptr(), e.mask._version


def zeros_known(weights: Iterable[Tensor]) -> list[bool]:
    """Of each whether it is as it was when it was known to be zero where its mask prunes it."""
    known = []
    for w in weights:
        e = entries.get(id(w))
        there = e is not None and bool(e.zeros) and e.weight() is w and not w.is_inference()
        known.append(there and e.zeros == (w._version, w.data_ptr(), e.mask._version))  # type: ignore[union-attr]
    return known


def send_masked(gradients: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Weights and gradients on their way to them in a backward: zero where the weights are pruned."""
    backward = torch._C._current_graph_task_id()  # a later one may use this memory again
    for w, gradient in gradients:
        e = entries.get(id(w))
        if e is not None:
            e.gradient = backward, gradient.data_ptr(), gradient._version, e.mask._version


def came_masked(weight: Tensor, gradient: Tensor) -> bool:
    """Whether the gradient that has come is the one that was sent, and nothing was added to it."""
    e = entries.get(id(weight))
    backward = torch._C._current_graph_task_id()
    return e is not None and e.gradient == (backward, gradient.data_ptr(), gradient._version, e.mask._version)


class ActiveWeights:
    """The active weights of `params`, read and written as one vector, in memory order.

    `masks` says what is active, instead of the masks that the parameters have. Where ranks hold a part of each
    parameter (fully_shard), the vector is that of this rank's parts, and lengths are those of the vector of all.
    """

    def __init__(self, params: Sequence[Tensor], masks: Mapping[Tensor, Tensor] | None = None) -> None:
        self.params = list(params)
        self._refuse_complex()
        found = masks_by_weight(params) if masks is None else [masks.get(p) for p in params]
        self.shards = shards(params)  # the ranks that hold the other parts
        self.sharded = any_sharded(params)
        self.parts = [local(p) for p in params]
        self._seen = self._signature(found)
        self.dtype = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
        self.device = params[0].device if params else torch.device("cpu")
        self.widest = widest(self.device)
        self._order = [memory_order(p) for p in self.parts]
        self._turned = [order != sorted(order) for order in self._order]
        self._views = [as_vector(p, order) for p, order in zip(self.parts, self._order, strict=True)]
        self._places = [v.data_ptr() for v in self._views]
        self._index = [
            None if m is None else local(m).to(p.device).permute(order).reshape(-1).nonzero().squeeze(1)
            for p, m, order in zip(self.params, found, self._order, strict=True)
        ]
        self._masked = [i for i, index in enumerate(self._index) if index is not None]
        self._own_masks = masks is None and not self.sharded and bool(self._masked)
        self._unmasked = [i for i, index in enumerate(self._index) if index is None]
        self._spread: tuple[list[float], Tensor] | None = None
        self.asides: tuple[dict[int, Tensor], dict[int, Tensor]] = ({}, {})  # memory for two other points
        self.sizes = [p.numel() if i is None else i.numel() for p, i in zip(self.parts, self._index, strict=True)]
        self.n_weights = sum(p.numel() for p in params)  # pruned ones too
        of_ranks = self._sizes_of_ranks()
        self.full_sizes = [sum(sizes) for sizes in zip(*of_ranks, strict=True)]  # with the parts of all ranks
        self.starts = [sum(sizes[: self.shards.rank]) for sizes in zip(*of_ranks, strict=True)]

    def __len__(self) -> int:
        return sum(self.sizes)

    def fits(self, params: Sequence[Tensor]) -> bool:
        """Whether these are its parameters, where they were, and as active as they were by their masks."""
        same = len(params) == len(self.params) and all(map(is_, params, self.params))
        return same and self._seen == self._signature(masks_by_weight(params))

    # --- weights, and tensors shaped like them -----------------------------------------------------------------------

    def read(self) -> Tensor:
        """A copy of the active weights."""
        return self._join(self._views)

    def write(self, vector: Tensor) -> None:
        """Set the active weights; reading them back gives the same bits."""
        parts = vector.split(self.sizes)
        if self._unmasked:  # all of them in one call
            torch._foreach_copy_([self._views[i] for i in self._unmasked], [parts[i] for i in self._unmasked])
        zero = zeros_known(self.params) if self._own_masks else []
        for i in self._masked:
            self._set(i, self._views[i], parts[i])
        know_zeros([p for p, known in zip(self.params, zero, strict=False) if known])

    def versions(self) -> list[int]:
        """A number for each parameter that changes with every write to it."""
        return self._versions(self.params)

    def write_where(self, vector: Tensor, versions: list[int]) -> bool:
        """Set the weights of parameters that nobody has written since `versions`, wherever they lie by now.

        Whether all were as they had been left; then the weights are the vector.
        """
        now = self.versions()
        if not self.sharded and versions == now and self._places == [p.data_ptr() for p in self.parts]:
            self.write(vector)
            return True
        parts = vector.split(self.sizes)
        for i, (p, view) in enumerate(zip(self.params, self._views, strict=True)):
            if local(p).data_ptr() != view.data_ptr():  # moved, as by model.to()
                self._put(i, p.detach(), parts[i])
            elif not versions or now[i] == versions[i]:
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

    def dense(self, vector: Tensor, kept: dict[int, Tensor] | None = None) -> list[Tensor]:
        """The vector as tensors shaped and laid out like the parameters, zero at pruned weights.

        With `kept` they lie where those of the last call with it lay, and only active entries are written.
        """
        found, kept = [], {} if kept is None else kept
        for i, part in enumerate(vector.split(self.sizes)):
            param, index = self.parts[i], self._index[i]
            if index is not None:
                if i not in kept:
                    kept[i] = part.new_zeros(param.numel())
                part = kept[i].scatter_(0, index, part)
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
        lowest, highest = vector.aminmax() if vector.numel() else vector.new_zeros(2)
        largest = torch.maximum(-lowest, highest)
        if self.shards.world > 1:
            largest = self.shards.max(largest, "norms")
        scaled = vector / largest.clamp_min(tiny)
        return scaled.div_(self.norm(scaled).clamp_min(tiny))

    def cosine(self, a: Tensor, b: Tensor) -> Tensor:
        return self.dot(self.unit(a), self.unit(b))

    @cached_property
    def filters(self) -> Filters:
        """The rows of weights that share an output."""
        like = torch.zeros(0, dtype=self.dtype, device=self.device)
        return Filters(self.parts, self._order, self._index, self.shards, like)

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _signature(self, masks: Sequence[Tensor | None]) -> list[object]:
        """Changes exactly when the active weights would: another storage or layout, or other masks."""
        parts = [local(p) for p in self.params] if self.sharded else self.params
        written = self._versions([m for m in masks if m is not None])
        return [*map(Tensor.data_ptr, parts), *map(Tensor.stride, parts), *map(id, masks), *written]

    def _versions(self, tensors: Sequence[Tensor]) -> list[int]:
        """A number for each that changes with every write: to the tensor, or to this rank's part of it."""
        return [t._version + local(t)._version for t in tensors] if self.sharded else [t._version for t in tensors]

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
        tensor = local(tensor) if self.sharded else tensor
        dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
        return dense.permute(self._order[i]).reshape(-1) if self._turned[i] else dense.reshape(-1)

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
