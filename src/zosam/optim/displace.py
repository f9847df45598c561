"""Weights that go somewhere, and come back to exactly where they were."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zosam.optim.vector import ActiveWeights


class Home(NamedTuple):
    """Where displaced weights come back to."""

    space: ActiveWeights
    weights: Tensor
    written: list[int]  # the version of each parameter as we have left it

    def untouched(self, space: ActiveWeights) -> bool:
        """Whether the weights are as we have left them."""
        return self.space is space and self.written == space.versions()


class Displacement:
    """Where the weights of one optimizer are, if they are not at home.

    Whoever writes a parameter in the meantime, such as a loaded checkpoint, is left in the right.
    """

    def __init__(self) -> None:
        self._home: Home | None = None
        self._last: Home | None = None  # where they came back to last: the next way out need not read them again

    @property
    def is_away(self) -> bool:
        return self._home is not None

    def go(self, space: ActiveWeights, offset: Tensor) -> None:
        """Add the offset to the weights; the first one to do so leaves home."""
        here = self._last.weights if self._last is not None and self._last.untouched(space) else space.read()
        home = self._home or Home(space, here, [])
        self._home = home  # known before anything is written: it may fail half-way
        space.write(here + offset)
        self._home = home._replace(written=space.versions())
        self._last = None
        torch.clear_autocast_cache()  # it holds the weights of before, rounded

    def go_on(self, space: ActiveWeights, offset: Tensor) -> None:
        """Be at home plus the offset; home itself is passed over where that is known to be the same."""
        if self._home is not None and self._home.untouched(space):
            self._last = self._home
        else:
            self.come_home()
        self.go(space, offset)

    def come_home(self) -> None:
        """Bring the weights back, bit for bit."""
        if self._home is not None:
            home, self._home = self._home, None
            came_back = home.space.write_where(home.weights, home.written)
            self._last = home._replace(written=home.space.versions()) if came_back else None
            torch.clear_autocast_cache()

    def length(self) -> Tensor:
        """The norm of the weights at home."""
        assert self._home is not None
        return self._home.space.norm(self._home.weights)

    def save(self, space: ActiveWeights) -> Tensor | None:
        """Where the weights are on their way, if they are away: for `resume`."""
        return space.read() if self.is_away else None

    def resume(self, space: ActiveWeights, weights: Tensor) -> None:
        """Go back to where `save` was called."""
        if self._home is not None:
            space.write(weights)
            self._home = self._home._replace(written=space.versions())
            torch.clear_autocast_cache()

    def forget_last(self) -> None:
        """Free the copy that is kept for the next way out of the same step."""
        self._last = None
