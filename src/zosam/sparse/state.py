"""What is saved of a sparse method, and how it lies in the state_dict of the optimizers that it works on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.fsdp import local, shared_like
from zosam.names import default_of, settings_of
from zosam.optim import state_hooks
from zosam.optim.guards import level_of_user

Masks = dict[str, Tensor]
ABOUT = ("method", "sparsity", "settings", "steps", "masks")
SEEN_OTHERWISE = {
    "model",
    "optimizer",
    "sparsity",
    "include",
    "exclude",
    "dense",
    "loss",
}  # in the masks, or not at all
SHAPES_MASKS = ("pattern", "budget", "over")  # what masks themselves obey, so that others do not fit


class MaskState:
    """The part of a `Sparsity` that is saved and loaded."""

    model: nn.Module
    weights: dict[str, nn.Parameter]
    masks: Masks
    target_sparsity: float
    steps: int
    watchers: list[Callable[[], None]]

    settings: dict[str, str]  # what it was made with, besides model, optimizer and sparsity
    _unpruned: dict[str, Tensor]  # the weights as they were found, until the first step

    def __new__(cls, *args: Any, **given: Any) -> Self:
        self = super().__new__(cls)
        names = {name: p.default for name, p in settings_of(cls).items() if name not in SEEN_OTHERWISE}
        self.settings = {name: _told(cls, name, given.get(name, default)) for name, default in names.items()}
        return self

    def is_as_made(self, name: str) -> bool:
        """Whether nobody has written this weight since the first masks were put on it."""
        raise NotImplementedError

    def extra_state(self) -> dict[str, Any]:
        """What else a method must save: numbers, and tensors by name."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Masks and method state; they ride in the optimizer's own `state_dict` too."""
        about = {
            "method": type(self).__name__,
            "sparsity": self.target_sparsity,
            "settings": dict(self.settings),
            "steps": self.steps,
        }
        return {**about, "masks": {n: m.clone() for n, m in self.masks.items()}, **self.extra_state()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of another method, model, sparsity or structure."""
        ours = self.state_dict()
        if state.get("method") != ours["method"] or {*state, "settings"} != ours.keys():
            whose = state.get("method", f"something with {', '.join(state)}")
            raise ValueError(f"this is not the state of {ours['method']} but of {whose}")
        if state["sparsity"] != ours["sparsity"]:
            raise ValueError(f"this is a state of sparsity {state['sparsity']}, not {ours['sparsity']}")
        shapes, expected = ({n: tuple(m.shape) for n, m in s["masks"].items()} for s in (state, ours))
        if shapes != expected:
            other = sorted(n for n in {*shapes, *expected} if shapes.get(n) != expected.get(n))
            raise ValueError(f"these masks belong to another model or setting: {', '.join(other[:5])} differ")
        if unfit := [told for k, told in self._other_settings(state).items() if k in SHAPES_MASKS]:
            raise ValueError(f"these masks were made with {'; '.join(unfit)}")

    def _other_settings(self, state: Mapping[str, Any]) -> dict[str, str]:
        """What the state was saved with and this method is not made with; states of before settings say nothing."""
        had = state.get("settings", {})
        return {k: f"{k}={v}, not {self.settings.get(k)}" for k, v in had.items() if v != self.settings.get(k)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take masks and method state; those of another model or method are refused, and nothing is changed."""
        self.check_state(state)
        if differ := self._other_settings(state):
            name = type(self).__name__
            warnings.warn(f"{name} goes on with other settings: it had {'; '.join(differ.values())}", stacklevel=2)
        self.load_extra_state({k: v for k, v in state.items() if k not in ABOUT})
        self.steps = int(state["steps"])
        for name, mask in self.masks.items():
            new = shared_like(state["masks"][name].to(mask.device), mask)
            # a weight is touched where its mask changes alone: a trainer may send the masks of now through here
            if not torch.equal(local(new), local(mask)):
                mask.copy_(new)
                weight = local(self.weights[name].detach())
                if self.is_as_made(name):  # these weights were loaded, and then pruned by masks that nobody wanted
                    weight.copy_(local(self._unpruned[name]))
                weight.mul_(local(mask))
                self._unpruned.pop(name, None)

    def _say_if_fresh(self) -> None:
        """Say so if the masks were drawn anew for a network that was sparse already, and cut it in their own way."""
        before = cut = 0
        for name, found in self._unpruned.items():
            alive, mask = local(found) != 0, local(self.masks[name])
            there, lost, idle = int(alive.sum()), int((alive & ~mask).sum()), int((mask & ~alive).sum())
            if min(lost, idle) > there / 4:
                before, cut = before + there, cut + lost
        if cut:
            warnings.warn(
                f"{type(self).__name__}: these weights were sparse, and fresh masks have set {cut:,} of {before:,} to"
                " zero: load the optimizer's state that was saved with them before the first step, since their masks"
                " are in there, or take Magnitude, which keeps what is there",
                stacklevel=level_of_user(),
            )


class SavedPart:
    """The state of a method as far as it belongs to the weights of one optimizer."""

    def __init__(self, sparse: MaskState, optimizer: Optimizer) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.sparse = sparse
        self.weights = {n: w for n, w in sparse.weights.items() if id(w) in held}

    def pack(self) -> state_hooks.Extra:
        """The state by weight; what belongs to no weight lies beside the first."""
        extra: state_hooks.Extra = {w: {} for w in self.weights.values()}
        for key, value in self.sparse.state_dict().items():
            if isinstance(value, Mapping) and value.keys() == self.sparse.weights.keys():
                for name, weight in self.weights.items():
                    # as bytes, which everything that sends tensors can send
                    tensor = value[name]
                    extra[weight][key] = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
            elif extra:
                next(iter(extra.values()))[key] = value
        return extra

    def check(self, extra: state_hooks.Extra) -> None:
        self.sparse.check_state(self._together(extra))

    def unpack(self, extra: state_hooks.Extra) -> None:
        self.sparse.load_state_dict(self._together(extra))

    def _together(self, extra: state_hooks.Extra) -> dict[str, Any]:
        """The state that `pack` has taken apart, with what other optimizers hold as it is now."""
        mine = {n: extra[w] for n, w in self.weights.items() if w in extra}
        if not self.weights:  # an optimizer of biases alone: all of it lies with the others
            return self.sparse.state_dict()
        if not mine:
            raise ValueError(
                f"this state holds no masks (was it saved without {type(self.sparse).__name__}?): load it into the"
                " optimizer before the sparse method is made"
            )
        state: dict[str, Any] = {}
        for name, items in mine.items():
            for key, value in items.items():
                if isinstance(value, Tensor):
                    state.setdefault(key, {})[name] = value.bool() if value.dtype == torch.uint8 else value
                else:
                    state[key] = value
        if len(self.weights) < len(self.sparse.weights):
            for key, value in self.sparse.state_dict().items():
                if isinstance(value, Mapping) and value.keys() == self.sparse.weights.keys():
                    others = {n: v for n, v in value.items() if n not in self.weights}
                    state[key] = state.get(key, {}) | others
        return state


def _told(kind: type, name: str, value: Any) -> str:
    """A setting as it is saved; where None stands for what the method itself prefers, that."""
    value = default_of(kind, name) if value is None else value
    return getattr(value, "__qualname__", repr(value))
