"""What a pass through the model may change besides the weights: buffers and random streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook


class Modules:
    """The modules that closures run, found as they are first called: no model has to be handed over."""

    def __init__(self) -> None:
        self.with_buffers: WeakSet[nn.Module] = WeakSet()
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._compiled = False

    @contextmanager
    def watch(self, moment: Moment) -> Iterator[None]:
        """Note what is called in here; buffers met for the first time join `moment`."""
        if self._compiled:  # its inside is traced, and a hook there would be too: what was found at first must do
            yield
            return

        def note(module: nn.Module, inputs: object) -> None:
            if module in self._seen:
                return
            self._compiled |= hasattr(module, "_orig_mod")
            if self._compiled:
                hook.remove()
            for part in module.modules():
                self._seen.add(part)
                if part._buffers and part not in self.with_buffers:
                    self.with_buffers.add(part)
                    moment.add(part)

        hook = register_module_forward_pre_hook(note)
        try:
            yield
        finally:
            hook.remove()


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
            for module, name, buffer, _ in self._buffers:
                module._buffers[name] = buffer
            if self._buffers:
                torch._foreach_copy_([buffer for _, _, buffer, _ in self._buffers], [v for *_, v in self._buffers])
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
