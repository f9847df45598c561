"""Notes: what was measured of a trained network beside its training, read without trusting it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CORRUPTED, SPEED = "corrupted", "speed"  # their names, in a run's folder and in its line
SEVERITIES = 5
Note = Mapping[str, Any]


def require_right(name: str, note: Any, place: str = "this line") -> None:
    """Refuse a note whose content cannot be what was measured; of others only that it is an object."""
    right = RIGHT.get(name)
    if not isinstance(note, dict) or (right is not None and not right(note)):
        raise ValueError(f"{name} cannot be right: remove it from {place}, and measure again")


def _corrupted(note: Note) -> bool:
    found, pictures = note.get("accuracy"), note.get("pictures")
    if not isinstance(found, dict) or not (pictures is None or (type(pictures) is int and 0 < pictures < 1 << 53)):
        return False
    each = list(found.values())
    if not each or not all(isinstance(values, list) and 0 < len(values) <= SEVERITIES for values in each):
        return False
    return all(type(v) in (int, float) and 0 <= v <= 1 for values in each for v in values)


def _speed(note: Note) -> bool:
    own, other = note.get("images_per_second"), note.get("reference")
    right = isinstance(own, list) and isinstance(other, list) and 0 < len(own) == len(other)
    right = right and all(isinstance(v, (int, float)) and 0 < v < 1e12 for v in (*own, *other))  # type: ignore[misc]
    return right and isinstance(note.get("versus"), str) and isinstance(note.get("how"), dict)


RIGHT: dict[str, Callable[[Note], bool]] = {CORRUPTED: _corrupted, SPEED: _speed}
