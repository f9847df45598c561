"""What a pass may change besides the weights, taken and put back: buffers and random streams; and what others may have
changed between two steps, noticed: the weights."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from zosam.distributed.fsdp import any_sharded, local


class Modules:
    """The modules that closures run: no model has to be handed over.

    They are met as they are called. Where something is compiled, a hook on every call would make it compile again,
    and where ranks train together it must be known before the first call who averages gradients: there (`searches`)
    all that is alive is searched, once, for modules that hold the parameters, with those above and below them.
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], searches: Callable[[], bool] = lambda: False) -> None:
        self.params, self._asked = params, searches
        self._met: WeakSet[nn.Module] = WeakSet()
        self._found: list[ref[nn.Module]] = []
        self._known: list[int] = []  # the parameters that they were searched with

    def all(self) -> list[nn.Module]:
        """Those that are known by now."""
        return self.search() if self._searches() else list(self._met)

    def search(self) -> list[nn.Module]:
        """Those around the parameters, whether they were called or not."""
        found = [module for r in self._found if (module := r()) is not None]
        params = [id(p) for p in self.params()]
        if len(found) < len(self._found) or params != self._known:  # one has gone, or a parameter has come
            found = _around(set(params))
            self._found, self._known = [ref(module) for module in found], params
        return found

    @contextmanager
    def watch(self, snapshot: Snapshot) -> Iterator[None]:
        """Modules that are called in here for the first time join `snapshot` before they run."""
        if self._searches():
            yield
            return

        def meet(module: nn.Module, inputs: object) -> None:
            if module in self._met:
                return
            for part in module.modules():
                if part not in self._met:
                    self._met.add(part)
                    snapshot.add(part)

        hook = register_module_forward_pre_hook(meet)
        try:
            yield
        finally:
            hook.remove()

    def _searches(self) -> bool:
        return compiles() or self._asked()


def _around(params: set[int]) -> list[nn.Module]:
    """Every module that is alive and holds one of the parameters, those above it, and all below those."""
    alive = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]  # isinstance would ask weak proxies
    alive = [m for m in alive if "_parameters" in m.__dict__]  # one that is still being made is none yet
    for module in alive:
        if hasattr(module, "reshard"):  # fully_shard, which may hold the full weights in the place of the parameters
            module.reshard()
    above: dict[int, list[nn.Module]] = {}
    for module in alive:
        for child in module._modules.values():
            above.setdefault(id(child), []).append(module)
    todo = [m for m in alive if any(id(p) in params for p in m._parameters.values())]
    found: dict[int, nn.Module] = {}
    while todo:
        module = todo.pop()
        if id(module) not in found:
            found[id(module)] = module
            todo += above.get(id(module), [])
    for module in list(found.values()):
        found.update((id(part), part) for part in module.modules())
    return list(found.values())


def compiles() -> bool:
    """Whether torch.compile was called in this process."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in backends.values())


class Snapshot:
    """The buffers of some modules and the random streams, as they are now; `since`: earlier in the same step."""

    streams: Streams

    def __init__(self, modules: Sequence[nn.Module], device: torch.device, since: Snapshot | None = None) -> None:
        self.streams = Streams(device, None if since is None else since.streams)
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        self._versions: list[int] = []  # of the counters among them
        for module in modules:
            if module._buffers:
                self.add(module)

    def add(self, module: nn.Module) -> None:
        self._buffers += [(module, name, b, b.detach().clone()) for name, b in module._buffers.items() if b is not None]
        self._versions += [b._version for b in self._counters()[len(self._versions) :]]

    def restore(self) -> None:
        """Everything as it was; a buffer that was replaced is the old object again."""
        self.restore_buffers()
        self.streams.restore()

    @torch.no_grad()
    def restore_buffers(self) -> None:
        for module, name, buffer, _ in self._buffers:
            module._buffers[name] = buffer
        if self._buffers:
            torch._foreach_copy_([buffer for _, _, buffer, _ in self._buffers], [v for *_, v in self._buffers])

    def note_versions(self) -> None:
        """From here on, what passes do is counted: see `moves_since`."""
        self._versions = [b._version for b in self._counters()]

    def moves_since(self) -> int:
        """How often the statistics were moved since; nothing is read from the device."""
        return max((b._version - v for b, v in zip(self._counters(), self._versions, strict=True)), default=0)

    def _counters(self) -> list[Tensor]:
        return [b for _, name, b, _ in self._buffers if name == "num_batches_tracked"]


class Streams:
    """Random streams that a pass may draw from: torch's on the CPU and on the device, numpy's and Python's own."""

    _numpy: NumpyStream

    def __init__(self, device: torch.device, since: Streams | None = None) -> None:
        self._cpu, self._python = torch.get_rng_state(), random.getstate()
        self._numpy = NumpyStream(None if since is None else since._numpy)
        self._module = None if device.type in {"cpu", "meta"} else torch.get_device_module(device)
        self._device, self._state = device, None
        if self._module is not None:
            self._state = self._module.get_rng_state(device)

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        self._numpy.restore()
        if self._module is not None:
            self._module.set_rng_state(self._state, self._device)


class NumpyStream:
    """The state of numpy's global stream, which takes long to copy in and out.

    So its bits are compared first, with those that it had earlier in the same step (`since`). They tell all unless half
    of a pair of normal numbers waits to be handed out.
    """

    _bits: bytes | None
    _bits_tell: bool

    def __init__(self, since: NumpyStream | None = None) -> None:
        self._bits = _numpy_bits()
        same = since is not None and since._bits_tell and since._bits == self._bits
        self._state: Any = since._state if same and since else np.random.get_state(legacy=False)  # noqa: NPY002
        self._bits_tell = self._bits is not None and not self._state["has_gauss"]

    def restore(self) -> None:
        if not self._bits_tell or _numpy_bits() != self._bits:
            np.random.set_state(self._state)  # noqa: NPY002


def _numpy_bits() -> bytes | None:
    """The memory of numpy's generator; None where it is another one than numpy's own."""
    generator = np.random.mtrand.get_bit_generator()
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, 2500)  # 624 words and a position


class Written:
    """Remembers the weights of a sparse model by marks that change with every write, and by samples where none would.

    A write through `.data` leaves no mark; so one pruned entry of every layer is looked at as well: it must be zero.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        self._names, self._weights, self._masks = list(weights), list(weights.values()), list(masks.values())
        self._model, self._in_parts = model, any_sharded(self._weights)
        self._inside = self._links()
        names = {id(w): n for n, w in weights.items()}
        held = [(m, key, p) for m in model.modules() for key, p in m._parameters.items() if id(p) in names]
        self._owners = [] if self._in_parts else [(m, key, p, names[id(p)]) for m, key, p in held]
        self._marks: list[tuple[int, int]] = []
        self._sampled: list[tuple[int, int]] = []  # of each layer, the mask and the memory that its sample is of
        self._samples: list[Tensor | None] = [None] * len(self._names)
        self._waits = False  # samples lie on a device that would have to be waited for
        self.note()

    def note(self) -> None:
        """They are right as they are now."""
        self._marks = self._now()
        sampled = [(mask._version, at) for mask, (_, at) in zip(self._masks, self._marks, strict=True)]
        if sampled == self._sampled or self._in_parts:
            return
        for i, key in enumerate(sampled):
            if not self._sampled or key != self._sampled[i]:
                self._samples[i] = _pruned_entry(self._weights[i], self._masks[i])
        self._sampled = sampled
        self._waits = any(s is not None and s.device.type != "cpu" for s in self._samples)

    def same(self, name: str) -> bool:
        return self._now()[at := self._names.index(name)] == self._marks[at]

    def changed(self, waits: bool) -> list[str]:
        """Layers that somebody else has written; `waits`: whether it may wait for a device to look at samples."""
        now = self._now()
        if now != self._marks:
            return [n for n, mark, was in zip(self._names, now, self._marks, strict=True) if mark != was]
        if self._waits and not waits:
            return []
        samples = [s for s in self._samples if s is not None]
        return list(self._names) if samples and bool(torch.stack(samples).any()) else []

    def not_zero(self, names: Sequence[str]) -> dict[str, int]:
        """How many pruned weights of these layers are not zero, where some are not."""
        pairs = [(w, m) for n, w, m in zip(self._names, self._weights, self._masks, strict=True) if n in names]
        alive = [local(w.detach()).masked_fill(local(m), 0).count_nonzero() for w, m in pairs]
        return {n: c for n, c in zip(names, torch.stack(alive).tolist(), strict=True) if c} if names else {}

    def say_that_they_are_not_zero(self, method: str, wrong: Mapping[str, int]) -> None:
        """Say of how many pruned weights, by layer."""
        first, more = next(iter(wrong)), f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        warnings.warn(
            f"{method}: {sum(wrong.values()):,} pruned weights of {first}{more} are not zero (was a checkpoint of other"
            " masks loaded?): they are set to zero. Load the optimizer's state with the model's, or make the method"
            " anew for these weights",
            stacklevel=5,
        )

    def say_if_replaced(self, method: str) -> None:
        """Say which weights are in the model no more, but others in their place."""
        gone = [n for module, key, weight, n in self._owners if module._parameters.get(key) is not weight]
        if any(parent._modules.get(key) is not child for parent, key, child in self._inside):
            there = {id(p) for p in self._model.parameters()}
            gone += [n for n, w in zip(self._names, self._weights, strict=True) if id(w) not in there]
            self._inside = self._links()
        if gone:
            warnings.warn(
                f"{method}: another parameter is in the place of {', '.join(gone[:3])} (was a state loaded with"
                " assign=True?), and neither masks nor optimizer reach it: make both anew",
                stacklevel=5,
            )

    def _links(self) -> list[tuple[nn.Module, str, nn.Module | None]]:
        return [(m, key, child) for m in self._model.modules() for key, child in m._modules.items()]

    def _now(self) -> list[tuple[int, int]]:
        """For each weight two numbers, one of which changes when somebody writes to it or puts other data in it."""
        parts = [local(w) for w in self._weights] if self._in_parts else self._weights
        return [(part._version, part.data_ptr()) for part in parts]


def _pruned_entry(weight: Tensor, mask: Tensor) -> Tensor | None:
    """One of the entries that the mask prunes, as a view; None if there is none."""
    flat = mask.reshape(-1).view(torch.uint8)
    at = int(flat.argmin()) if flat.numel() else 0
    if not flat.numel() or bool(flat[at]):
        return None
    return weight.detach()[tuple(int(i) for i in torch.unravel_index(torch.tensor(at), weight.shape))]
