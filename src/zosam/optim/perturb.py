"""Where a perturbation is added to the weights, and where it is undone: bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zosam.optim.vector import ActiveWeights


class SavedWeights(NamedTuple):
    """The weights as they were before they were perturbed."""

    space: ActiveWeights
    weights: Tensor
    written: list[int]  # the version of each parameter as we have left it

    def untouched(self, space: ActiveWeights) -> bool:
        """Whether the weights are as we have left them."""
        return self.space is space and self.written == space.versions()


class Perturbation:
    """What is added to the weights of one optimizer for the time being.

    Whoever writes a parameter in the meantime, such as a loaded checkpoint, is left in the right.
    """

    def __init__(self) -> None:
        self._saved: SavedWeights | None = None
        self._last: SavedWeights | None = None  # as restored last: the next perturbation need not read them

    @property
    def is_active(self) -> bool:
        return self._saved is not None

    def add(self, space: ActiveWeights, offset: Tensor) -> None:
        """Add the offset to the weights; they are saved first, if nobody has done so."""
        here = self._last.weights if self._last is not None and self._last.untouched(space) else space.read()
        saved = self._saved or SavedWeights(space, here, [])
        self._saved = saved  # known before anything is written: it may fail half-way
        space.write(here + offset)
        self._saved = saved._replace(written=space.versions())
        self._last = None
        torch.clear_autocast_cache()  # it holds the weights of before, rounded

    def move_to(self, space: ActiveWeights, offset: Tensor) -> None:
        """Set the weights to the saved ones plus the offset, in one go where nobody else has written them."""
        if self._saved is not None and self._saved.untouched(space):
            self._last = self._saved
        else:
            self.restore()
        self.add(space, offset)

    def restore(self) -> None:
        """Undo it: the weights are as they were, bit for bit."""
        if self._saved is not None:
            saved, self._saved = self._saved, None
            came_back = saved.space.write_where(saved.weights, saved.written)
            self._last = saved._replace(written=saved.space.versions()) if came_back else None
            torch.clear_autocast_cache()

    def length(self, space: ActiveWeights) -> Tensor:
        """The norm of the weights as they are without it."""
        return space.norm(space.read() if self._saved is None else self._saved.weights)

    def where(self, space: ActiveWeights) -> Tensor | None:
        """The displaced weights, if they are displaced: for `go_back_to`."""
        return space.read() if self.is_active else None

    def go_back_to(self, space: ActiveWeights, weights: Tensor) -> None:
        """Set the displaced weights to what `where` has given; those to restore stay as they are."""
        if self._saved is not None:
            space.write(weights)
            self._saved = self._saved._replace(written=space.versions())
            torch.clear_autocast_cache()

    def forget_last(self) -> None:
        """Free the copy that is kept for the next way out of the same step."""
        self._last = None
