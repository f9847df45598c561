"""What is asked of closures: to take part of a batch, and to return a loss that is finite."""

from __future__ import annotations

import inspect
from collections.abc import Callable


def require_keep(closure: Callable[..., object]) -> None:
    """Refuse a closure that has no argument `keep`."""
    try:
        parameters = inspect.signature(closure).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    if not any(p.name == "keep" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(
            "this optimizer evaluates part of the batch, so its closure must take which part:"
            " def closure(keep=slice(None)): return loss(model(x[keep]), y[keep])"
        )


def not_finite(loss: float) -> FloatingPointError:
    return FloatingPointError(
        f"the loss is {loss}: the step was not taken, weights are as before it;"
        " look at the learning rate, rho and the inputs"
    )
