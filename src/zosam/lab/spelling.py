"""Values as text and back: `every=2,probe=gaussian(4)` by the annotations of whatever takes them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from zosam.names import nearest, settings_of

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


class Refused(ValueError):
    """What a part itself has said of its settings."""


def arguments(
    thing: Callable[..., Any],
    name: str,
    pieces: Iterable[str],
    known: Mapping[str, inspect.Parameter],
    parts: Mapping[str, type],
) -> dict[str, Any]:
    """The arguments that pieces such as `every=2` are for `thing`; without a name only where it is a part."""
    settings: dict[str, Any] = {}
    places = iter(known if dataclasses.is_dataclass(thing) else ())
    for piece in pieces:
        key, text = pair(piece) if re.match(r"\w+\s*=", piece) else (next(places, None), piece)
        if key is None:
            raise ValueError(f"{name}: expected key=value, found {piece!r}")
        if key not in known:
            raise ValueError(
                f"{name} has no setting {key!r}: {nearest(key, known)}it takes {', '.join(known) or 'none'}"
            )
        if key in settings:
            raise ValueError(f"{name}: {key} is set twice")
        try:
            settings[key] = value_of(text, known[key], parts)
        except Refused as error:
            raise ValueError(f"{name}: {key}={text}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{name}: {key} must be {error}, not {text}") from None
    return settings


def value_of(text: str, parameter: inspect.Parameter, parts: Mapping[str, type]) -> Any:
    """What a text stands for, by the annotation; a ValueError says what would do."""
    wanted = parameter.annotation
    if wanted in (inspect.Parameter.empty, Any) or isinstance(wanted, str):
        unknown = parameter.default in (None, inspect.Parameter.empty)
        wanted = int | float | bool | None | str if unknown else type(parameter.default)
    kinds, refused = members(wanted), []
    fitting = {name: part for name, part in parts.items() if _any_fits([part], kinds)}
    for kind in sorted(kinds, key=lambda k: k is str):  # any text is text
        try:
            return _part(text, fitting, parts) if _any_fits(fitting.values(), [kind]) else _as(kind, text, parts)
        except Refused:
            raise
        except ValueError as error:
            refused.append(str(error))
        except TypeError:  # what cannot be written: functions, tensors
            continue
    raise ValueError(" or ".join(dict.fromkeys(refused)) or "left out: it cannot be written as text")


def _as(kind: Any, text: str, parts: Mapping[str, type]) -> Any:
    """The text as one kind of value."""
    low = text.lower()
    if get_origin(kind) is Literal:
        options = {str(o): o for o in get_args(kind)}
        if _unquoted(text) in options:
            return options[_unquoted(text)]
        raise ValueError(_one_of(options, text))
    if get_origin(kind) in (Sequence, tuple, list):
        if not (text.startswith("(") and text.endswith(")")):
            raise ValueError("a list such as (a,b)")
        item = inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY, annotation=get_args(kind)[0])
        return tuple(value_of(piece, item, parts) for piece in pieces(text[1:-1]))
    if kind in (bool, type(None)):
        options = {"true": True, "false": False} if kind is bool else {"none": None}
        if low in options:
            return options[low]
    elif kind in (int, float):
        return _number(kind, text)
    elif kind is str:
        return _unquoted(text)
    else:
        raise TypeError(kind)
    raise ValueError(WORDS[kind])


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] == "'" else text


def _number(kind: type, text: str) -> int | float:
    over, slash, under = text.partition("/")
    if len(text) > 40 or (kind is int and not re.fullmatch(r"[+-]?\d{1,18}", text)):
        raise ValueError(WORDS[kind])
    try:
        if kind is int:
            return int(text)
        value = int(over) / int(under) if slash else float(text) + 0.0  # there is one zero
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(WORDS[kind])
    return value


def _part(text: str, fitting: Mapping[str, type], parts: Mapping[str, type]) -> Any:
    """The part that a call such as gaussian(4) makes; its own checks speak for themselves."""
    call = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text, re.DOTALL)
    if call is None or call[1] not in fitting:
        raise ValueError(_one_of(fitting, text if call is None else call[1]))
    cls = fitting[call[1]]
    try:
        return cls(**arguments(cls, call[1], pieces(call[2] or ""), settings_of(cls), parts))
    except ValueError as error:
        raise Refused(error) from None


def _any_fits(parts: Iterable[type], kinds: Iterable[Any]) -> bool:
    """Whether any of the parts is of any of the kinds: of that class, or called with as many arguments."""

    def fits(part: type, kind: Any) -> bool:
        if get_origin(kind) is not Callable:
            return isinstance(kind, type) and kind in part.__mro__
        call = next((cls.__dict__["__call__"] for cls in part.__mro__ if "__call__" in cls.__dict__), None)
        return call is not None and len(inspect.signature(call).parameters) - 1 == len(get_args(kind)[0])

    return any(fits(part, kind) for part in parts for kind in kinds)


def _one_of(options: Mapping[str, Any], text: str) -> str:
    near = nearest(text, options)
    return f"one of {', '.join(options)}" + (f" ({near.strip()})" if near else "")


def members(wanted: Any) -> list[Any]:
    """The kinds that an annotation allows."""
    return list(get_args(wanted)) if get_origin(wanted) in (Union, types.UnionType) else [wanted]


def pieces(text: str) -> list[str]:
    """Cut at the commas that are outside of parentheses and quotes."""
    pieces, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == "'"
        depth += 0 if quoted else (c == "(") - (c == ")")
        if c == "," and not depth and not quoted:
            pieces.append("")
        else:
            pieces[-1] += c
        if depth < 0:
            break
    if depth or quoted:
        raise ValueError(f"{text!r}: parentheses or quotes do not match")
    return [p.strip() for p in pieces if p.strip()]


def pair(piece: str) -> tuple[str, str]:
    """The key and the value of a piece."""
    key, equals, value = piece.partition("=")
    if not equals:
        raise ValueError(f"expected key=value, found {piece!r}")
    return key.strip(), value.strip()


def written(name: str, settings: Mapping[str, Any], whole: bool = False) -> str:
    """A name with settings; `whole` writes all of what parts are made of, not only what was changed."""
    tail = ",".join(f"{key}={_spelled(value, whole)}" for key, value in settings.items())
    return f"{name}:{tail}" if tail else name


def _spelled(value: Any, whole: bool) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"({','.join(_spelled(v, whole) for v in value)})"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if dataclasses.is_dataclass(value):
        fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
        shown = ",".join(f"{f.name}={_spelled(v, whole)}" for f, v in fields if whole or v != f.default)
        return f"{type(value).__name__.lower()}({shown})"
    of_text = isinstance(value, str)
    text = value if of_text else re.sub(r" at 0x[0-9a-f]+", "", str(value))  # where code lies differs every time
    quoted = not text or set(text) & set(",()' ") or (of_text and _looks_otherwise(text))
    return "'" + text.replace("'", "''") + "'" if quoted else text


def _looks_otherwise(text: str) -> bool:
    """Whether a text, bare, could be read as something else."""
    try:
        return text.lower() in {"none", "true", "false"} or math.isfinite(_number(float, text))
    except ValueError:
        return False
