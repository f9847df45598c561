"""Vectors that a method keeps from step to step, over active weights that may change in between."""

from __future__ import annotations

import torch
from torch import Tensor

from zosam.optim.vector import Coordinates


class Memory:
    """Named vectors, each with the coordinates it was taken in; read back, they follow the masks."""

    def __init__(self, saved: dict[str, Tensor] | None = None) -> None:
        self._held: dict[str, tuple[Coordinates | None, Tensor]] = {
            k: (None, v.clone()) for k, v in (saved or {}).items()
        }

    def put(self, name: str, vector: Tensor, space: Coordinates) -> None:
        self._held[name] = (space, vector)

    def get(self, name: str, space: Coordinates) -> Tensor | None:
        """What was put there, over the coordinates of now: weights that have grown since hold zero."""
        if name not in self._held:
            return None
        then, vector = self._held[name]
        if then is None:  # loaded: in reading order
            active = sum(space.whole_sizes)
            if len(vector) != active:
                raise ValueError(f"the saved {name!r} has {len(vector)} entries, the model {active} active weights")
            loaded = torch.empty(len(space), dtype=space.dtype, device=space.device)
            loaded[space.reading_order()] = space.part(vector.to(space.device, space.dtype))
            vector = loaded
        elif then is not space:
            vector = space.move(vector, then)
        self._held[name] = (space, vector)
        return vector

    def state(self, space: Coordinates) -> dict[str, Tensor]:
        """All of it, whole, in reading order, which does not depend on how the weights lie in memory."""
        held = {name: vector for name in self._held if (vector := self.get(name, space)) is not None}
        return {name: space.whole(vector[space.reading_order()]) for name, vector in held.items()}
