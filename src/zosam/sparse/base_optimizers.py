"""The optimizers that a sparse method works on: torch's own, inside whatever wraps them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim import state_hooks
from zosam.optim.base import SharpnessAware
from zosam.optim.masked import mask_of


def bases(given: Optimizer | Sequence[Optimizer], weights: Mapping[str, Tensor]) -> list[Optimizer]:
    """The base optimizers, if they hold these weights and take one step at a time, and nobody else masks these."""
    optimizers = [state_hooks.unwrapped(o) for o in (given if isinstance(given, Iterable) else [given])]
    for strange in (o for o in optimizers if not isinstance(o, Optimizer)):
        raise TypeError(f"the optimizer must be one of torch's, or a list of them, not {type(strange).__name__}")
    if len(optimizers) > 1 and any(isinstance(o, SharpnessAware) for o in optimizers):
        raise ValueError("several optimizers are stepped by hand, one after the other: give torch's own, unwrapped")
    found: list[Optimizer] = [o.base if isinstance(o, SharpnessAware) else o for o in optimizers]
    for optimizer in found:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ValueError(
                f"{type(optimizer).__name__} evaluates its closure many times in a step, where no mask can be kept:"
                " take SGD, Adam or another optimizer that steps once"
            )
    held = {id(p) for o in found for group in o.param_groups for p in group["params"]}
    missing = [n for n, w in weights.items() if id(w) not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}:"
            " it must be made from the parameters of this very model"
        )
    taken = [n for n, w in weights.items() if mask_of(w) is not None]
    if taken:
        raise ValueError(
            f"another method keeps {taken[0]} sparse already{f', and {len(taken) - 1} more' if taken[1:] else ''}:"
            " release() that one first"
        )
    return found


def with_loss_known(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure of a plain torch optimizer now, so that the hook sees this step's gradient and not the last's."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (args[0], lambda: loss), {k: v for k, v in kwargs.items() if k != "closure"}


def unscaled(optimizer: Optimizer) -> bool:
    """Divide gradients by the scale of the GradScaler, which leaves that to fused optimizers: methods look at them.

    False where it lets the optimizer step only for that to see that its gradients are not finite.
    """
    found: Tensor | None = getattr(optimizer, "found_inf", None)
    if found is not None and bool(found):
        return False
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(grads, scale)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
    return True
