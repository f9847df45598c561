"""Names and their settings: `"looksam:k=10,alpha=0.5"` means the thing called looksam with those arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def find(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`; an unknown name gets an error with the nearest valid one."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"no {kind} is called {name!r}: {hint}choose from {', '.join(sorted(table))}")


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Split `"name:key=value,key=value"`; values are read as numbers (1/8 too), booleans or None."""
    name, _, rest = spec.partition(":")
    settings: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{spec!r}: expected key=value after the colon, found {part!r}")
        settings[key.strip()] = _value(value.strip())
    return name.strip(), settings


def canonical(spec: str) -> str:
    """One spelling for all ways to write the same thing, so that equal runs have equal addresses."""
    name, settings = parse(spec)
    tail = ",".join(f"{key}={settings[key]}" for key in sorted(settings))
    return f"{name}:{tail}" if tail else name


def check_settings(
    thing: Callable[..., object], settings: Mapping[str, Any], name: str, taken: Iterable[str] = ()
) -> None:
    """Refuse a setting that `thing` does not take, and name the ones it does."""
    parameters = settings_of(thing)
    known = [p for p in parameters if p not in set(taken)]
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{name} has no setting {key!r}: {hint}it takes {', '.join(known) or 'none'}")
        kind = type(parameters[key].default)
        if kind is int and not isinstance(value, int):
            raise ValueError(f"{name}: {key} must be a whole number, not {value}")
        if kind is float and not isinstance(value, (int, float)):
            raise ValueError(f"{name}: {key} must be a number, not {value}")


def settings_of(thing: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The arguments that a function or class takes; those that a class hands up to its parents included."""
    if not isinstance(thing, type):
        return dict(inspect.signature(thing).parameters)
    found: dict[str, inspect.Parameter] = {}
    for parent in thing.__mro__:
        init = parent.__dict__.get("__init__")
        if init is None:
            continue
        parameters = list(inspect.signature(init).parameters.values())[1:]
        for p in parameters:
            if p.kind is not p.VAR_KEYWORD:
                found.setdefault(p.name, p)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def summary(thing: object) -> str:
    """The first sentence of a docstring, for lists."""
    doc = inspect.getdoc(thing) or ""
    return doc.partition("\n")[0].rstrip(".")


def _value(text: str) -> Any:
    if text in {"True", "true"}:
        return True
    if text in {"False", "false"}:
        return False
    if text in {"None", "none"}:
        return None
    over, slash, under = text.partition("/")
    if slash and len(text) < 40 and over.isdecimal() and under.isdecimal() and int(under):
        return int(over) / int(under)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
