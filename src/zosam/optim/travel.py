"""What must survive a checkpoint rides in the base optimizer's own `state_dict`, by torch's hooks.

So every trainer that saves and restores an optimizer carries masks and sharpness-aware state along, and needs to know
nothing of them. They lie beside the momentum of a parameter, in `state_dict()["state"][i][key]`: torch's distributed
checkpoints keep nothing else. The optimizer itself never sees them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

KEYS = ("sparsity", "sharpness_aware")
Luggage = dict[Tensor, dict[str, Any]]  # tensors and plain values by name, for each parameter that they lie beside


class Rider(Protocol):
    """An object whose state travels with a base optimizer."""

    def pack(self) -> Luggage:
        """All that must survive; tensors are copies."""

    def check(self, luggage: Luggage) -> None:
        """Refuse what is missing or of something else, before anything is changed."""

    def unpack(self, luggage: Luggage) -> None:
        """Go on from there; the base has its own state already."""


class _Coach:
    """The hooks on one optimizer, and who rides."""

    def __init__(self, base: Optimizer) -> None:
        self.riders: list[tuple[str, Rider]] = []
        self.arrived: list[tuple[Rider, Luggage]] = []
        base.register_state_dict_post_hook(self.save)
        base.register_load_state_dict_pre_hook(self.look)
        base.register_load_state_dict_post_hook(self.load)

    def save(self, base: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        params = list(_params(base))
        beside: dict[int, dict[str, Any]] = {id(p): {} for p in params}
        for key, rider in self.riders:
            for param, items in rider.pack().items():
                beside[id(param)][key] = items
        # every parameter gets an entry: distributed checkpoints ask for all if there is one
        own = {i: {**state["state"].get(i, {}), **beside[id(p)]} for i, p in enumerate(params)} if self.riders else {}
        return {**state, "state": {**state["state"], **own}}

    def look(self, base: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        names = list(chain.from_iterable(g["params"] for g in state["param_groups"]))  # numbers, or parameters' names
        params = list(_params(base))
        if len(names) != len(params):
            raise ValueError(f"this state is of {len(names)} parameters, the optimizer has {len(params)}")
        place = dict(zip(names, params, strict=True))
        found: dict[str, Luggage] = {key: {} for key in KEYS}
        own: dict[Any, dict[str, Any]] = {}
        for name, items in state["state"].items():
            kept = {k: v for k, v in items.items() if k not in KEYS}
            for key in items.keys() - kept.keys():
                found[key][place[name]] = items[key]
            if kept:
                own[name] = kept
        arrived = [(rider, found[key]) for key, rider in self.riders]
        for rider, luggage in arrived:
            rider.check(luggage)
        lost = [key for key in KEYS if found[key] and key not in {k for k, _ in self.riders}]
        if lost:
            raise ValueError(
                f"this state holds {' and '.join(lost)} state that nothing here takes: make the optimizer and the"
                " sparse method that it was saved with, then load it"
            )
        self.arrived = arrived
        return {**state, "state": own}

    def load(self, base: Optimizer) -> None:
        arrived, self.arrived = self.arrived, []
        for rider, luggage in arrived:
            rider.unpack(luggage)


def board(base: Optimizer, key: str, rider: Rider) -> None:
    """Let `rider` travel with `base` from now on; a copy of an optimizer leaves its riders behind."""
    (_coach(base) or _Coach(base)).riders.append((key, rider))


def board_alone(base: Optimizer, key: str, rider: Rider) -> None:
    """The same, in the place of whoever has travelled under this key before."""
    for older in riders(base, key):
        leave(base, older)
    board(base, key, rider)


def require_last(base: Optimizer, key: str, rider: Rider) -> None:
    """Refuse to save or load through one that another has taken the place of."""
    if riders(base, key) != [rider]:
        raise ValueError(f"another optimizer was wrapped around {type(base).__name__} since: save and load that one")


def leave(base: Optimizer, rider: Rider) -> None:
    """Travel no more."""
    coach = _coach(base)
    if coach is not None:
        coach.riders = [(k, r) for k, r in coach.riders if r is not rider]


def riders(base: Optimizer, key: str) -> list[Any]:
    """Who travels with `base` under this key."""
    coach = _coach(base)
    return [] if coach is None else [r for k, r in coach.riders if k == key]


def first_parameter(base: Optimizer) -> Tensor:
    """Where state lies that belongs to no parameter alone."""
    return next(_params(base))


def is_rehearsal(base: Optimizer) -> bool:
    """Whether the step under way is torch's way to make an optimizer's state before a distributed checkpoint.

    It steps once, with learning rates and gradients of zero and often right after the weights were loaded. Such a step
    counts for nothing, and must not touch a weight.
    """
    if any(float(group.get("lr", 1.0)) for group in base.param_groups):
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_init_optim_state":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _coach(base: Optimizer) -> _Coach | None:
    owners = (getattr(hook, "__self__", None) for hook in base._optimizer_state_dict_post_hooks.values())
    return next((o for o in owners if isinstance(o, _Coach)), None)


def _params(base: Optimizer) -> Iterator[Tensor]:
    return chain.from_iterable(group["params"] for group in base.param_groups)
