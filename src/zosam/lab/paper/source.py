"""The TOML files of this package."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read(name: str) -> dict[str, Any]:
    """The content of `name`.toml; it is shared, so leave it as it is."""
    text = (resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
