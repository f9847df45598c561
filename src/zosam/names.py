"""Names: look things up, with the nearest valid one in the error, and read off what they take and say of themselves."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def find(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry called `name`; an unknown name gets an error with the nearest valid one."""
    if name in table:
        return table[name]
    raise ValueError(f"no {kind} is called {name!r}: {nearest(name, table)}choose from {', '.join(sorted(table))}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A question after the known name that is most like it, to stand in an error; nothing if none is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def settings_of(thing: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The arguments that a function or class takes; those that a class hands up to its parents included."""
    if not isinstance(thing, type):
        return dict(_signature(thing).parameters)
    found: dict[str, inspect.Parameter] = {}
    for parent in thing.__mro__:
        init = parent.__dict__.get("__init__")
        if init is None:
            continue
        parameters = list(_signature(init).parameters.values())[1:]
        for p in parameters:
            if p.kind is not p.VAR_KEYWORD:
                found.setdefault(p.name, p)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def default_of(thing: Callable[..., object], name: str) -> Any:
    """The default of an argument; where that is None and the class that takes it, or one below, says its own, that."""
    default = settings_of(thing)[name].default
    for kind in thing.__mro__ if default is None and isinstance(thing, type) else ():
        if name in kind.__dict__:
            own = kind.__dict__[name]
            return own if isinstance(own, (str, int, float, tuple)) else None
        if "__init__" in kind.__dict__ and name in _signature(kind.__dict__["__init__"]).parameters:
            break
    return default


def fitting(thing: Callable[..., object], **settings: Any) -> dict[str, Any]:
    """Those of the settings that `thing` takes."""
    known = settings_of(thing)
    return {name: value for name, value in settings.items() if name in known}


def summary(thing: object) -> str:
    """The first sentence of a docstring, for lists."""
    doc = inspect.getdoc(thing) or ""
    return doc.partition("\n")[0].rstrip(".")


@cache  # to evaluate annotations takes long, and every run that is made asks
def _signature(function: Callable[..., object]) -> inspect.Signature:
    """With real annotations where they can be had: some name what only a type checker imports."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)
