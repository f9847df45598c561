"""What a method remembers from step to step: vectors over active weights, which may change in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from zosam.distributed.fsdp import full_like, shared_like
from zosam.optim.vector import ActiveWeights


class Memory:
    """Named vectors that follow the masks: a weight that has grown since holds zero, one that was pruned is dropped."""

    def __init__(
        self, saved: Mapping[str, Sequence[Tensor | None]] | None = None, params: Sequence[Tensor] = ()
    ) -> None:
        self._held: dict[str, tuple[ActiveWeights, Tensor]] = {}
        # shaped like the parameters, and each with its own, until somebody asks: some may be frozen by then
        self._loaded = {name: list(zip(params, tensors, strict=True)) for name, tensors in (saved or {}).items()}

    def update(self, other: Memory) -> None:
        """Know what the other knows."""
        self._held.update(other._held)
        self._loaded.update(other._loaded)

    def put(self, name: str, vector: Tensor, space: ActiveWeights) -> None:
        self._loaded.pop(name, None)
        self._held[name] = (space, vector)

    def get(self, name: str, space: ActiveWeights) -> Tensor | None:
        """What was put there, over the active weights of now."""
        if name in self._loaded:
            saved = {id(p): t for p, t in self._loaded.pop(name)}
            pairs = [(saved.get(id(p)), p) for p in space.params]
            parts = [None if t is None else shared_like(t.to(p.device), p) for t, p in pairs]  # saved anywhere
            self._held[name] = (space, space.gather(parts))
        if name not in self._held:
            return None
        then, vector = self._held[name]
        if then is not space:
            by_param = {id(p): t for p, t in zip(then.params, then.dense(vector), strict=True)}
            vector = space.gather([by_param.get(id(p)) for p in space.params])
            self._held[name] = (space, vector)
        return vector

    def state(self, space: ActiveWeights) -> dict[str, list[Tensor]]:
        """All of it, shaped like the parameters and whole: so it fits whatever masks are loaded beside it."""
        vectors = {name: self.get(name, space) for name in [*self._held, *self._loaded]}
        return {
            name: [full_like(t, p) for t, p in zip(space.dense(v), space.params, strict=True)]
            for name, v in vectors.items()
            if v is not None
        }
