"""Notices that a loss was scaled by a GradScaler: two gradients that are mixed must be in one unit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor

Scale = Callable[[Any, Any], Any]


class Scaling:
    """While in here, knows the scaler that has scaled a loss in this thread.

    Nobody has to say it: `scale` of all kinds of GradScaler is exchanged while some thread is in here.
    """

    _lock = threading.Lock()
    _here = threading.local()  # what this thread is in
    _inside = 0  # how many all threads are in, together
    _own: ClassVar[dict[type, Scale]] = {}  # the functions as they were

    def __init__(self) -> None:
        self.scaler: torch.amp.GradScaler | None = None

    @property
    def factor(self) -> float:
        """By which the loss was multiplied."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def scaled(self, closure: Callable[..., Tensor], scaler: torch.amp.GradScaler | None) -> Callable[..., Tensor]:
        """The closure with its loss scaled, once: by itself or by the scaler."""

        @wraps(closure)
        def once(**keep: Any) -> Tensor:
            self.scaler = None
            loss = closure(**keep)
            if self.scaler is None and scaler is not None:
                loss = scaler.scale(loss)
            return loss

        return once

    def __enter__(self) -> Scaling:
        with Scaling._lock:
            if not Scaling._inside:
                Scaling._own = {kind: kind.__dict__["scale"] for kind in _kinds(torch.amp.GradScaler)}
                for kind, own in Scaling._own.items():
                    kind.scale = _noticed(own)  # type: ignore[attr-defined]
            Scaling._inside += 1
        Scaling._here.innermost = self
        return self

    def __exit__(self, *exception: object) -> None:
        Scaling._here.innermost = None
        with Scaling._lock:
            Scaling._inside -= 1
            if not Scaling._inside:
                for kind, own in Scaling._own.items():
                    kind.scale = own  # type: ignore[attr-defined]


def _noticed(own: Scale) -> Scale:
    def scale(scaler: Any, outputs: Any) -> Any:
        inside: Scaling | None = getattr(Scaling._here, "innermost", None)
        if inside is not None:
            inside.scaler = scaler
        return own(scaler, outputs)

    return scale


def _kinds(kind: type[torch.amp.GradScaler]) -> Iterator[type[torch.amp.GradScaler]]:
    """This kind of scaler and all below it that scale in a way of their own."""
    if "scale" in kind.__dict__:
        yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
