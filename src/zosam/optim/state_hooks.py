"""State of ours in the base optimizer's own `state_dict`, by torch's hooks: what must survive a checkpoint.

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
from torch.optim.optimizer import register_optimizer_step_pre_hook

KEYS = ("sparsity", "sharpness_aware")
Extra = dict[Tensor, dict[str, Any]]  # tensors and plain values by name, for each parameter that they lie beside


class Holder(Protocol):
    """An object whose state is saved and loaded with a base optimizer."""

    def pack(self) -> Extra:
        """All that must survive; tensors are copies."""

    def check(self, extra: Extra) -> None:
        """Refuse what is missing or of something else, before anything is changed."""

    def unpack(self, extra: Extra) -> None:
        """Go on from there; the base has its own state already."""


class Register:
    """Whose state is saved and loaded with one optimizer, by hooks on it."""

    def __init__(self, base: Optimizer) -> None:
        states = [state for state in base.state.values() if isinstance(state, dict)]
        early = [key for key in KEYS if any(key in state for state in states)]
        if early:  # loaded by torch alone, when nothing here could take it
            raise ValueError(
                f"this {type(base).__name__} holds {' and '.join(early)} state, loaded before the optimizer and the"
                " sparse method that it was saved with were made: make them first, then load it, or drop it:"
                f" for state in optimizer.state.values(): state.pop({early[0]!r}, None)"
            )
        self.wrapper: Any = None  # the sharpness-aware optimizer around it
        self.holders: list[tuple[str, Holder]] = []
        self.loaded: list[tuple[Holder, Extra]] = []
        base.register_state_dict_post_hook(self.save)
        base.register_load_state_dict_pre_hook(self.validate)
        base.register_load_state_dict_post_hook(self.load)

    def add(self, key: str, holder: Holder) -> None:
        """Save and load its state from now on."""
        self.holders.append((key, holder))

    def remove(self, holder: Holder) -> None:
        """No longer save and load its state."""
        self.holders = [(k, h) for k, h in self.holders if h is not holder]

    def wrap(self, wrapper: Holder) -> None:
        """A sharpness-aware optimizer takes the place of the one that was around this one before."""
        self.remove(self.wrapper)
        self.wrapper = wrapper
        self.add("sharpness_aware", wrapper)

    def is_masked(self) -> bool:
        """Whether a sparse method masks weights of this optimizer."""
        return any(key == "sparsity" for key, _ in self.holders)

    def save(self, base: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        params = list(_params(base))
        beside: dict[int, dict[str, Any]] = {id(p): {} for p in params}
        for key, holder in self.holders:
            for param, items in holder.pack().items():
                beside[id(param)][key] = items
        # every parameter gets an entry: distributed checkpoints ask for all if there is one
        own = {i: {**state["state"].get(i, {}), **beside[id(p)]} for i, p in enumerate(params)} if self.holders else {}
        return {**state, "state": {**state["state"], **own}}

    def validate(self, base: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        names = list(chain.from_iterable(g["params"] for g in state["param_groups"]))  # numbers, or parameters' names
        params = list(_params(base))
        if len(names) != len(params):
            raise ValueError(f"this state is of {len(names)} parameters, the optimizer has {len(params)}")
        place = dict(zip(names, params, strict=True))
        found: dict[str, Extra] = {key: {} for key in KEYS}
        own: dict[Any, dict[str, Any]] = {}
        for name, items in state["state"].items():
            kept = {k: v for k, v in items.items() if k not in KEYS}
            for key in items.keys() - kept.keys():
                if name not in place:
                    raise ValueError(
                        f"this state speaks of {name!r}, which is none of the optimizer's parameters: through"
                        " distributed checkpoints it goes by torch's get_state_dict and set_state_dict"
                    )
                found[key][place[name]] = items[key]
            if kept:
                own[name] = kept
        loaded = [(holder, found[key]) for key, holder in self.holders]
        for holder, extra in loaded:
            holder.check(extra)
        lost = [key for key in KEYS if found[key] and key not in {k for k, _ in self.holders}]
        if lost:
            raise ValueError(
                f"this state holds {' and '.join(lost)} state that nothing here takes: make the optimizer and the"
                " sparse method that it was saved with, then load it"
            )
        self.loaded = loaded
        return {**state, "state": own}

    def load(self, base: Optimizer) -> None:
        loaded, self.loaded = self.loaded, []
        for holder, extra in loaded:
            holder.unpack(extra)


def unwrapped(optimizer: Any) -> Any:
    """What is inside of a trainer's wrapper, as accelerate and Lightning have one; anything else as it is."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def register(base: Optimizer) -> Register:
    """The register of `base`; a copy of an optimizer has one of its own, without holders."""
    owners = (getattr(hook, "__self__", None) for hook in base._optimizer_state_dict_post_hooks.values())
    return next((owner for owner in owners if isinstance(owner, Register)), None) or Register(base)


class Masked(dict[str, Any]):
    """The `defaults` of an optimizer whose weights a sparse method masks.

    A copy of an optimizer, or one out of a pickle, has defaults and no hooks: by them it is known, before its first
    step, that its sparse method was left behind.
    """

    _looks = False  # whether steps are looked at in this process

    def __init__(self, defaults: dict[str, Any], copied: bool = False) -> None:
        super().__init__(defaults)
        self.copied = copied  # and no sparse method has taken hold of its optimizer since
        if copied and not Masked._looks:
            register_optimizer_step_pre_hook(refuse_without_masks)
            Masked._looks = True

    def __reduce__(self) -> tuple[Any, ...]:
        return Masked, (dict(self), True)


def refuse_without_masks(optimizer: Optimizer, *_: Any) -> None:
    """Refuse a step of a copy whose sparse method was left behind: it would train dense."""
    defaults = getattr(optimizer, "base", optimizer).defaults
    if isinstance(defaults, Masked) and defaults.copied:
        raise RuntimeError(
            "this optimizer was copied without the sparse method that masks its weights, and would train a dense"
            " network: copy or pickle them together, deepcopy((model, optimizer, sparse)), or make the method anew"
        )


def first_parameter(base: Optimizer) -> Tensor:
    """Where state lies that belongs to no parameter alone."""
    return next(_params(base))


def is_rehearsal(base: Optimizer) -> bool:
    """Whether the step under way is torch's way to make an optimizer's state before a distributed checkpoint.

    It steps once an optimizer that has no state, with learning rates and gradients of zero and often right after the
    weights were loaded. Such a step counts for nothing, and must not touch a weight.
    """
    if any(float(group.get("lr", 1.0)) for group in base.param_groups):
        return False
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_init_optim_state":
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _params(base: Optimizer) -> Iterator[Tensor]:
    return chain.from_iterable(group["params"] for group in base.param_groups)
