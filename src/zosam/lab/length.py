"""A longer training: what a recipe says in epochs or steps is stretched with it."""

from __future__ import annotations

from typing import Any

from zosam.lab.settings import Choice, Kind

# Of a schedule, in epochs; and of LTH, in steps. When masks stay is a share of the training in every method, and how
# often they move does not change, as in RigL.
TIMES = {"warmup", "cooldown", "at", "rewind"}


def stretched(kind: Kind, choice: Choice, factor: float) -> Choice:
    """The same choice for a training that is `factor` times as long."""
    changed = {name: _times(value, factor) for name, value in choice.settings.items() if name in TIMES}
    return kind.read(str(Choice(choice.name, "", {**choice.settings, **changed}))) if changed else choice


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(v, factor) for v in value)
    if value is None:
        return None
    return round(value * factor) if isinstance(value, int) else value * factor
