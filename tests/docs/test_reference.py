"""Whatever is public, and whatever the pages import, stands in the reference."""

from __future__ import annotations

import ast
import importlib
import re
from types import ModuleType
from typing import Any

import pytest

from .pages import PAGES, ROOT, blocks

TRAINERS = {"lightning", "accelerate", "transformers"}
EXPORTING = ["zosam", "zosam.kernels", "zosam.lab.data", "zosam.lab.models"]


def found(path: str) -> Any:
    """The object of that full name."""
    module, _, name = path.rpartition(".")
    if module and (thing := getattr(importlib.import_module(module), name, None)) is not None:
        return thing
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not module or not path.startswith(str(error.name)):
            raise
    return getattr(importlib.import_module(module), name)


@pytest.fixture(scope="module")
def told() -> list[str]:
    """The full name of everything that the pages of docs/reference show, and where it was defined."""
    names = []
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            try:
                thing = found(path)
            except ModuleNotFoundError as error:  # a trainer that is not installed here
                if error.name not in TRAINERS:
                    raise
                names.append(path)
                continue
            names.append(path)
            if isinstance(thing, ModuleType):
                own = [n for n, v in vars(thing).items() if getattr(v, "__module__", None) == thing.__name__]
                names += [f"{thing.__name__}.{n}" for n in own if not n.startswith("_")]
                names.append(thing.__name__)
            elif hasattr(thing, "__qualname__"):
                names.append(f"{thing.__module__}.{thing.__qualname__}")
    return names


def full_name(module: ModuleType, name: str) -> str:
    """Where a name was defined; a module and a plain value go by the name they are exported under."""
    thing = getattr(module, name)
    if isinstance(thing, ModuleType):
        return thing.__name__
    if hasattr(thing, "__qualname__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    return f"{module.__name__}.{name}"


@pytest.mark.parametrize("room", EXPORTING)
def test_everything_exported_is_in_the_reference(room, told):
    module = importlib.import_module(room)
    missing = [n for n in module.__all__ if not n.isupper() or room == "zosam"]  # catalogues are tables of these
    missing = [n for n in missing if full_name(module, n) not in told]
    assert not missing, f"docs/reference does not show {', '.join(missing)}"


def test_everything_that_the_pages_import_is_in_the_reference(told):
    missing = set()
    for page in PAGES:
        for block in blocks(page):
            if block.language != "python":
                continue
            for node in ast.walk(ast.parse(block.code)):
                if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("zosam"):
                    continue
                try:
                    module = importlib.import_module(str(node.module))
                except ModuleNotFoundError as error:
                    if error.name not in TRAINERS:
                        raise
                    missing |= {f"{node.module}.{a.name}" for a in node.names} - set(told)
                    continue
                for alias in node.names:
                    thing = getattr(module, alias.name, None)
                    name = f"{node.module}.{alias.name}" if thing is None else full_name(module, alias.name)
                    if name not in told and not isinstance(thing, ModuleType):
                        missing.add(name)
    assert not missing, f"docs/reference does not show {', '.join(sorted(missing))}"
