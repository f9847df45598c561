"""The calls of a program: written down once, made at every run.

Python runs on one thread while the others wait, and after a kernel it finds cold caches. So all calls of a program lie
in one list of integers, which C walks at one go. What differs from run to run (where inputs, outputs, parameters and
gradients lie) has slots in that list or in the structures that it points to.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from ctypes import Array, Structure, addressof, c_float, c_int64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn

from zosam.optim.vector import masks_by_weight, send_masked, zeros_known

from .build import SWEEP, Library, failure
from .memory import Memory
from .operations.base import Buffer, Op
from .operations.index import NOT_SEEN, Geometry, LayerIndex, Pattern, PixelIndex

if TYPE_CHECKING:
    from .regions import Layers

Key = tuple[nn.Module, str]  # of a parameter


class Slot(NamedTuple):
    """Stands for an integer that is known when a program runs: one of what, and which."""

    kind: str  # threads, arrival, stride, departure, parameter or gradient
    which: int = 0
    axis: int = 0


THREADS = Slot("threads")
Word = int | Slot


@dataclass
class Run:
    """What one run is given: tensors that come and go, and parameters with room for their gradients."""

    arrivals: Sequence[Tensor]  # inputs; in a backward program the gradients of outputs
    departures: Sequence[Tensor | None]  # outputs, or the gradients of inputs
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor | None] = ()
    kind: str = "image"  # of the region
    lead: Sequence[int] = ()  # sizes of rows without their features

    def values(self) -> list[int]:
        """What to put into the slots, in the order of `Script.order`."""
        values = [torch.get_num_threads()]
        for x in self.arrivals:
            values += (x.data_ptr(), *x.stride(), 0, 0)[:5]
        for tensor in (*self.departures, *self.parameters, *self.gradients):
            values.append(0 if tensor is None else tensor.data_ptr())
        return values


@dataclass
class LayerCall:
    """One sparse layer in a script: its pattern, its weight among the parameters, its place in the list."""

    pattern: Pattern
    weight: int | None  # None for a layer of our own
    at: tuple[int, ...]  # of the shape, the index, and for the backward the transposed indices and their counts
    gradient_of: str = ""  # active weights, those that `Layers.wanted` tells, or all
    index: LayerIndex | PixelIndex | None = None
    walked: LayerIndex | PixelIndex | None = None  # by the forward, or for the weight gradient
    shape: Structure | None = None


@dataclass
class Script:
    """The calls of one program on one piece of memory."""

    lib: Library
    all_layers: Layers
    images: int
    order: list[Slot]
    words: list[int] = field(default_factory=list)
    waiting: list[tuple[Slot, int | c_int64]] = field(default_factory=list)  # a word's place, or a structure's field
    parts: list[tuple[int, int, Callable[[Run], None] | None]] = field(default_factory=list)
    layers: list[LayerCall] = field(default_factory=list)
    norms: list[tuple[Any, nn.BatchNorm1d | nn.BatchNorm2d]] = field(default_factory=list)
    owned: list[object] = field(default_factory=list)  # what the list points to

    # --- writing -----------------------------------------------------------------------------------------------------

    def add(self, number: int, *arguments: Word | Structure) -> int:
        """One more call; where its first argument lies."""
        self.words.append(number)
        first = len(self.words)
        for argument in arguments:
            if isinstance(argument, Slot):
                self.waiting.append((argument, len(self.words)))
                self.words.append(0)
            elif isinstance(argument, int):
                self.words.append(argument)
            else:
                self.owned.append(argument)
                self.words.append(addressof(argument))
        return first

    def fill(self, structure: Structure, name: str, value: Word) -> None:
        """A field of a structure that the list points to."""
        if isinstance(value, int):
            setattr(structure, name, value)
        else:
            place = addressof(structure) + getattr(type(structure), name).offset
            self.waiting.append((value, c_int64.from_address(place)))

    def point(self, structure: Any, **to: Any) -> None:
        """Fields that point to other structures."""
        for name, other in to.items():
            self.owned.append(other)
            setattr(structure, name, addressof(other))

    def pause(self, then: Callable[[Run], None] | None) -> None:
        """Python works between what was added before and what comes after."""
        self.parts.append((self.parts[-1][1] if self.parts else 0, len(self.words), then))

    def close(self) -> Script:
        """Nothing more is added."""
        self.pause(None)
        self.list: Array[c_int64] = (c_int64 * len(self.words))(*self.words)
        self.start = addressof(self.list)
        number = {slot: i for i, slot in enumerate(self.order)}
        self.slots: list[list[c_int64]] = [[] for _ in self.order]
        for slot, place in self.waiting:
            word = c_int64.from_address(self.start + 8 * place) if isinstance(place, int) else place
            self.slots[number[slot]].append(word)
        self.last: list[int | None] = [None] * len(self.order)
        return self

    # --- running -----------------------------------------------------------------------------------------------------

    def make(self, run: Run) -> None:
        """All calls, in order; `follow` comes first."""
        counted = self._look_at_norms()
        values = run.values()
        for slots, value, last in zip(self.slots, values, self.last, strict=True):
            if value != last:
                for slot in slots:
                    slot.value = value
        self.last[:] = values
        for start, end, then in self.parts:
            failed = self.lib.c.zk_calls(self.start + 8 * start, end - start) if end > start else 0
            if failed:
                raise failure(failed)
            if then is not None:
                then(run)
        if counted:
            torch._foreach_add_(counted, 1)

    def follow(self, parameters: Sequence[Tensor]) -> int | None:
        """Renew the index of every layer whose mask has changed, or whose weight lies otherwise.

        Returns the place of a layer that must not run on the kernels now: its mask was let go, or does not fit its
        weight. Weights are looked through only if they have changed since.
        """
        suspects: list[LayerCall] = []
        words = array("q")
        weights = [layer.pattern.module._parameters["weight"] for layer in self.layers]
        masks, zeros = masks_by_weight(weights), zeros_known(weights)  # type: ignore[arg-type]
        for place, (layer, own, mask, zero) in enumerate(zip(self.layers, weights, masks, zeros, strict=True)):
            pattern, index = layer.pattern, layer.pattern.index
            if pattern.sparse and mask is None:  # it is not kept with its weight, or was let go
                mask = self.all_layers.mask(pattern.module)
                if mask is None:
                    return place
            assert own is not None
            weight = own if layer.weight is None else parameters[layer.weight]
            strides = weight.stride()
            if (
                index is None
                or mask is not pattern.mask
                or (mask is not None and mask._version != pattern.version)
                or strides != pattern.strides
            ):
                index = pattern.make(mask, strides)
            sampled = layer.gradient_of == "wanted"
            wanted = self.all_layers.wanted(pattern.module) if sampled else None
            if layer.index is not index or sampled:
                layer.index = index
                walked = index if layer.gradient_of else pattern.reads
                layer.walked = walked = walked if wanted is None else pattern.other(wanted)
                layer.shape = shape = type(index.shape).from_buffer_copy(walked.shape)
                shape.images = self.images
                structures = (shape, walked.forward, index.transposed, index.counts)
                for at, structure in zip(layer.at, structures, strict=False):
                    self.list[at] = addressof(structure)
            if layer.weight is not None and mask is not None:
                version, address = -1 if own.is_inference() else own._version, weight.data_ptr()
                marked = pattern.seen[0]() is not own or pattern.seen[1:] != (version, address) or version < 0
                marked = marked and not (weight is own and zero)
                if marked or (pattern.sample >= 0 and c_float.from_address(address + 4 * pattern.sample).value):
                    suspects.append(layer)
                    words.extend((address, weight.numel(), index.forward.pick, index.active))
                    pattern.seen = (ref(own), version, address)
        if suspects:
            stray = int(self.lib.c.zk_strays(words.buffer_info()[0], len(suspects)))
            if stray >= 0:
                for layer in suspects:
                    layer.pattern.seen = NOT_SEEN
                return self.layers.index(suspects[stray])
        return None

    def left_masked(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Tell of the gradients that this backward has left at zero where their weights are pruned."""
        at = [layer.weight for layer in self.layers if layer.gradient_of == "active" and layer.weight is not None]
        send_masked([(parameters[i], g) for i in at if (g := gradients[i]) is not None])

    def _look_at_norms(self) -> list[Tensor]:
        """How each batch norm works in this pass, as nn.BatchNorm2d decides it; the counters that it moves."""
        counted: list[Tensor] = []
        for structure, module in self.norms:
            buffers = module._buffers  # an attribute of a module is found the long way round
            mean, variance, count = buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
            structure.eps = module.eps
            structure.batch_statistics = int(module.training or mean is None)
            structure.momentum = -1.0  # leave the running statistics alone
            if mean is None or variance is None:
                continue
            structure.running_mean, structure.running_var = mean.data_ptr(), variance.data_ptr()
            if module.training and module.track_running_stats:
                structure.momentum = module.momentum or 0.0
                if count is not None:
                    counted.append(count)
                    if module.momentum is None:
                        structure.momentum = 1.0 / (float(count) + 1)
        return counted


class Writer:
    """Writes scripts for one piece of memory.

    `keys` are the parameters as runs give them, `layout` is that of outputs; `departures` tells their shapes.
    """

    def __init__(self, memory: Memory, layers: Layers, keys: Sequence[Key], layout: torch.memory_format) -> None:
        self.memory, self.layers, self.layout = memory, layers, layout
        self.keys = {key: i for i, key in enumerate(keys)}

    def script_of(self, ops: Sequence[Op], arrivals: int, departures: int, gradient_of: str = "") -> Script:
        """The calls of a program; every other one walks the batch from its end, where the cache is warm.

        A backward program takes the gradient of active weights, of those that are wanted, or of all.
        """
        self.gradient_of, self.gradients = gradient_of, bool(gradient_of)
        self.departures: list[tuple[tuple[int, ...], torch.memory_format]] = [((), self.layout)] * departures
        order = [THREADS]
        for i in range(arrivals):
            order += [Slot("arrival", i), *(Slot("stride", i, axis) for axis in range(4))]
        order += [Slot("departure", i) for i in range(departures)]
        kinds = ("parameter", *["gradient"] * self.gradients)
        order += [Slot(kind, i) for kind in kinds for i in range(len(self.keys))]
        self.script = Script(self.memory.lib, self.layers, self.memory.images, order)
        for turn, op in enumerate(ops):
            op.write(self, turn % 2)
        return self.script.close()

    def parameter(self, module: nn.Module, name: str) -> Word:
        """Where a parameter lies; fixed layers bring their own."""
        position = self.keys.get((module, name))
        if position is not None:
            return Slot("parameter", position)
        own = module._parameters[name]
        return 0 if own is None else own.data_ptr()

    def gradient(self, module: nn.Module, name: str) -> Word:
        return Slot("gradient", self.keys[module, name]) if (module, name) in self.keys else 0

    def layer(self, module: nn.Module, geometry: Geometry, *at: int) -> None:
        """A layer with its pattern, which `Script.follow` puts at these places."""
        pattern = self.layers.pattern(module, geometry, self.memory.pixels)
        weight = self.keys.get((module, "weight"))
        self.script.layers.append(LayerCall(pattern, weight, at, gradient_of=self.gradient_of))

    def sweep(
        self, like: Buffer, source: Any, sink: Any, pooled: Word, backwards: int, among: Sequence[int] = ()
    ) -> None:
        """One element-wise pass over a tensor of a buffer's shape; with `pooled`, to or from means over its pixels.

        `among`: how many channels lie where it reads, and where it writes.
        """
        among = among or (like.channels, like.channels)
        self.script.add(SWEEP, *self.memory.area(like), source or 0, sink, pooled, *among, THREADS, backwards)
