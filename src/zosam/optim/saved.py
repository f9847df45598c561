"""How a sharpness-aware optimizer is saved, loaded and copied: as one with its base."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import Optimizer

from zosam.names import settings_of
from zosam.optim import state_hooks
from zosam.optim.ascent import Ascent
from zosam.optim.recall import Memory


class Saved(Ascent):
    """The part of a `SharpnessAware` that lies in the base's `state_dict`, and in copies."""

    def restore(self) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The base's, in which this optimizer's own state lies."""
        self._require_last()
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._require_last()
        self.base.load_state_dict(state_dict)

    def _require_last(self) -> None:
        """Refuse to save or load through one that another has taken the place of."""
        if state_hooks.register(self.base).wrapper is not self:
            kind = type(self.base).__name__
            raise ValueError(f"another optimizer was wrapped around {kind} since: save and load that one")

    @classmethod
    def method(cls) -> str:
        """What saved states call it and, in small letters, the command line and records: the name of the class."""
        return cls.__name__

    def settings(self) -> dict[str, str]:
        """What it was made with, but for rho, which lies in the groups."""
        names = [name for name in settings_of(type(self)) if name not in {"base", "rho", "sigma"}]
        return {name: repr(getattr(self, name)) for name in names if hasattr(self, name)}

    def pack(self) -> state_hooks.Extra:
        """What is saved with the base: the method, its settings and steps, and what it remembers of each parameter."""
        if self.is_displaced:  # else a window of micro-batches goes on after a checkpoint
            self.restore()
        own = {"method": self.method(), "settings": self.settings(), "steps": self.steps}
        extra: state_hooks.Extra = {state_hooks.first_parameter(self.base): own}
        for name, tensors in self._memory.state(self.active).items():
            for p, t in zip(self.active.params, tensors, strict=True):
                extra.setdefault(p, {}).setdefault("memory", {})[name] = t
        return extra

    def check(self, extra: state_hooks.Extra) -> None:
        own = extra.get(state_hooks.first_parameter(self.base))
        if own is None:
            raise ValueError(
                f"this state holds nothing of {type(self).__name__}'s own (was it saved by the bare base optimizer?);"
                " load it into the base optimizer before that is wrapped"
            )
        if own["method"] != self.method():
            raise ValueError(f"this is a state of {own['method']}, not of {self.method()}")
        mine = self.settings()
        differ = [f"{k} {v}, not {mine.get(k)}" for k, v in own["settings"].items() if mine.get(k) != v]
        if differ:
            warnings.warn(
                f"{type(self).__name__} goes on with other settings: it had {'; '.join(differ)}", stacklevel=2
            )

    def unpack(self, extra: state_hooks.Extra) -> None:
        self.restore()
        self.steps = int(extra[state_hooks.first_parameter(self.base)]["steps"])
        kept = [extra.get(p, {}).get("memory", {}) for p in self.active.params]
        names = dict.fromkeys(name for of_param in kept for name in of_param)
        by_name = {name: [of_param.get(name) for of_param in kept] for name in names}
        self._memory = Memory(by_name, self.active.params)

    def __getstate__(self) -> dict[str, Any]:
        self.restore()
        # schedulers and scalers put a `step` bound to this very object here; torch's own copies drop hooks as well
        left = {"_passes", "_space", "_perturbation", "_memory", "_left", "_lengths", "_remarks", "step"}
        kept = {k: v for k, v in self.__dict__.items() if k not in left and not k.startswith("_optimizer_")}
        return {**kept, "memory": self._memory.state(self.active)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start_afresh()
        memory = state.pop("memory")
        Optimizer.__setstate__(self, state)
        self._memory = Memory(memory, self.active.params if memory else ())
        state_hooks.register(self.base).wrap(self)
