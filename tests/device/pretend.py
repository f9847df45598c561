"""A device called `pretend`, to test device handling on a machine that has none but a CPU.

Its tensors lie in CPU memory, so values are real; but an operation that mixes them with CPU tensors fails, as on a GPU,
and `waits` counts the calls that would make a GPU wait for Python. It is registered for the whole process, so tests of
it run in processes of their own: see test_device.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed.tensor  # before the device exists: importing it later asks the device for things
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
waits: list[str] = []


class Backend(_DummyBackendModule):
    """What torch asks of `torch.pretend`: one device, whose random stream is the CPU's."""

    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    manual_seed = staticmethod(lambda seed: None)
    synchronize = staticmethod(lambda: None)
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])


_setup_privateuseone_for_python_backend("pretend", backend_module=Backend())


class There(Tensor):
    """A CPU tensor that says it lies on pretend:0."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device="pretend:0", requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"There({self.inner})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        waits.append("tolist")
        return self.inner.tolist()

    @property
    def data(self) -> There:  # type: ignore[override]
        return There(self.inner.detach())

    @data.setter
    def data(self, value: There) -> None:
        self.inner = value.inner

    def __deepcopy__(self, memo: dict[int, Any]) -> There:
        copied = There(self.inner.detach().clone()).requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied  # type: ignore[return-value]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == "pretend"


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    found: list[Tensor] = []
    tree_map(lambda t: found.append(t) if isinstance(t, Tensor) else None, (args, kwargs))
    there = [isinstance(t, There) for t in found]
    if any(there) and func not in MOVES and any(not here and t.dim() for here, t in zip(there, found, strict=True)):
        raise RuntimeError(f"{func}: expected all tensors on one device, found pretend:0 and cpu")
    if any(there) and func in WAITS:
        waits.append(str(func))
    device = kwargs.get("device")
    if func is aten.copy_.default:
        target = isinstance(args[0], There)
    else:
        target = any(there) if device is None else _is_there(device)

    def inner(t: Any) -> Any:
        return t.inner if isinstance(t, There) else t

    kwargs = {k: "cpu" if k == "device" and v is not None else tree_map(inner, v) for k, v in kwargs.items()}
    out = func(*tree_map(inner, args), **kwargs)
    same = {id(inner(t)): t for t in found}

    def wrap(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        return same[id(t)] if id(t) in same else There(t) if target else t

    return tree_map(wrap, out)


class Pretend(TorchDispatchMode):
    """Inside, factories may be asked for device="pretend"; its generators are CPU ones."""

    _was: tuple[Any, Any]

    def __enter__(self) -> Pretend:
        generator, tensor = torch.Generator, torch.tensor

        def made(data: Any, *, device: Any = None, **settings: Any) -> Tensor:  # it copies below any mode
            here = tensor(data, device=None if _is_there(device) else device, **settings)
            return here.to(device) if _is_there(device) else here

        def generators(device: Any = "cpu") -> torch.Generator:
            return generator("cpu" if _is_there(device) else device)

        torch.Generator, torch.tensor = generators, made  # type: ignore[misc,assignment]
        self._was = generator, tensor
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        torch.Generator, torch.tensor = self._was  # type: ignore[misc]
        super().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def counted(work: Callable[[], object]) -> list[str]:
    """What would have made a GPU wait while `work` ran."""
    waits.clear()
    work()
    return list(waits)
