"""The device of a training: chosen by its name, made the current one, and nothing else on the machine is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from zosam.layouts import bears_channels_last
from zosam.machine import cpu_name

CPU = torch.device("cpu")
M = TypeVar("M", bound=nn.Module)


def choose(name: str) -> torch.device:
    """The device called `name`; auto is the accelerator if there is one, else the CPU.

    Of the processes that torchrun has started on a machine each takes its own: the first the first, and so on.
    """
    found = _accelerator()
    count = 0 if found is None else _module(found).device_count()
    here = "a CPU alone" if found is None else f"a CPU and {count} x {found.type}"
    try:
        wanted = (found or CPU) if name == "auto" else torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}: torch sees {here}, and auto takes the best") from None
    if wanted.type == "cpu":
        return CPU
    if found is None or wanted.type != found.type:
        raise ValueError(f"device {name}: torch {torch.__version__} sees {here}; say auto, or install a torch for it")
    beside, index = 1, wanted.index
    if index is None:
        index = getattr(_module(found), "current_device", lambda: 0)()
    if dist.is_available() and dist.is_torchelastic_launched():
        beside = int(os.environ["LOCAL_WORLD_SIZE"])
        index = int(os.environ["LOCAL_RANK"]) if wanted.index is None else index
    if beside > 1 and wanted.index is not None:
        raise ValueError(f"{beside} processes cannot share {name}: say {wanted.type}, and each takes its own")
    if beside > count:
        raise ValueError(f"{beside} processes for {count} x {wanted.type}: torchrun --nproc-per-node {count}, or cpu")
    if index >= count:
        raise ValueError(f"there is no {name}: torch sees {here}, counted from 0")
    return torch.device(wanted.type, index)


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make it the current one; its random stream and that of the CPU are afterwards as before, others never move."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    one = getattr(_module(device), "device", nullcontext)  # where there are never several it does not exist
    with one(device.index), torch.random.fork_rng([device.index], device_type=device.type):
        yield


def seed(device: torch.device, value: int) -> None:
    """Seed the CPU's random stream and that of the device; torch.manual_seed would seed all devices."""
    torch.default_generator.manual_seed(value)
    if device.type != "cpu":
        _module(device).manual_seed(value)


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the CPU's random stream, and after it that of the device's, from which dropout draws there."""
    state = torch.get_rng_state()
    return state if device.type == "cpu" else torch.cat([state, _module(device).get_rng_state(device)])


def set_random_state(device: torch.device, state: torch.Tensor, kind: str) -> None:
    """Go back to a state that was taken on a device of that kind: on another one the CPU's stream goes back alone."""
    own = len(torch.get_rng_state())
    torch.set_rng_state(state[:own])
    if device.type == kind != "cpu":
        _module(device).set_rng_state(state[own:], device)


def wait_for(device: torch.device) -> None:
    """Wait until all that it was told to do is done: before a clock is looked at."""
    if device.type != "cpu":
        _module(device).synchronize()


def placed(model: M, device: torch.device) -> M:
    """The network on the device, laid out as its convolutions are fastest: channels last, but not on Apple's."""
    if device.type == "mps" or not bears_channels_last(model):
        return model.to(device)
    return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def about(device: torch.device) -> dict[str, Any]:
    """What a record says of it."""
    if device.type == "cpu":
        return {"device": "cpu", "device_name": cpu_name()}
    name = getattr(_module(device), "get_device_name", lambda _: device.type)(device)
    found = {"device": str(device), "device_name": str(name)}
    if device.type == "cuda":  # whether fp32 is computed with fewer digits: torch's own default, unless told otherwise
        found["tf32"] = "matmul" * torch.backends.cuda.matmul.allow_tf32 + " conv" * torch.backends.cudnn.allow_tf32
    return found


def _accelerator() -> torch.device | None:
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return torch.device("cuda") if torch.cuda.is_available() else None
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
