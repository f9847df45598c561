"""What a pass through the model may change besides the weights, and how to take it back.

A sharpness-aware step runs the model several times. To the rest of the program it must look like one pass:
BatchNorm statistics and any other buffer move once, the random streams advance once, and every pass of the step
sees the same dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

Closure = Callable[..., Tensor]


class NoBackward(TorchFunctionMode):
    """Makes `loss.backward()` do nothing, so that a closure in torch's own form can be run forward only."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.backward:
            return None
        return func(*args, **(kwargs or {}))


class Passes:
    """The passes of one step: the first one that counts moves buffers and random streams, the others do not."""

    def __init__(self, device: Callable[[], torch.device]) -> None:
        self.counted = False
        self._modules = Modules()
        self._device = device
        self._start: Moment | None = None  # as before the step
        self._now: Moment | None = None  # as before the next frozen pass, where that is known

    @contextmanager
    def together(self) -> Iterator[None]:
        """The passes in here are one step, all or nothing: an exception takes back what they have changed."""
        self._start = self._now = self._moment()
        self.counted = False
        try:
            yield
        except BaseException:
            self._start.restore()
            raise
        finally:
            self._start = self._now = None
            self.counted = False

    @contextmanager
    def counting(self, closure: Closure) -> Iterator[None]:
        """A pass that leaves its traces."""
        with self._modules.watch(closure, self._start or self._moment()):
            yield
        self.counted, self._now = self._start is not None, None

    @contextmanager
    def frozen(self, closure: Closure) -> Iterator[None]:
        """A pass that leaves none, under the same noise as the other passes of the step."""
        moment = self._now or self._moment()
        if self._start is not None:
            self._now = moment
            self._start.streams.restore()
        try:
            with self._modules.watch(closure, moment):
                yield
        finally:
            moment.restore()

    def _moment(self) -> Moment:
        return Moment(self._modules, self._device())


class Modules:
    """The modules that closures run, found as they are first called: no model has to be handed over."""

    def __init__(self) -> None:
        self.with_buffers: WeakSet[nn.Module] = WeakSet()
        self._watched: set[object] = set()

    @contextmanager
    def watch(self, closure: Closure, moment: Moment) -> Iterator[None]:
        """Note what `closure` calls, once per piece of code; buffers met for the first time join `moment`."""
        function = getattr(closure, "func", closure)
        key = getattr(function, "__code__", type(function))
        if key in self._watched:
            yield
            return

        def note(module: nn.Module, inputs: object) -> None:
            if hasattr(module, "_orig_mod"):  # a compiled module: its inside is traced, a hook there would be too
                hook.remove()
            for part in module.modules():
                if part._buffers and part not in self.with_buffers:
                    self.with_buffers.add(part)
                    moment.add(part)

        hook = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()
        self._watched.add(key)


class Moment:
    """The buffers of some modules and the random streams, as they are now."""

    def __init__(self, modules: Modules, device: torch.device) -> None:
        self.streams = Streams(device)
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        for module in modules.with_buffers:
            self.add(module)

    def add(self, module: nn.Module) -> None:
        self._buffers += [(module, name, b, b.detach().clone()) for name, b in module._buffers.items() if b is not None]

    def restore(self) -> None:
        """Everything as it was; a buffer that was replaced is the old object again."""
        with torch.no_grad():
            for module, name, buffer, value in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(value)
        self.streams.restore()


class Streams:
    """The state of torch's random streams: the CPU's, and that of the device that computes."""

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._module = None if device.type in {"cpu", "meta"} else torch.get_device_module(device)
        self._device, self._state = device, None
        if self._module is not None:
            self._state = self._module.get_rng_state(device)

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._module is not None:
            self._module.set_rng_state(self._state, self._device)
