"""Things chosen by name: `zosam:every=2,probe=gaussian(4)` is read, checked, and every default filled in.

The settings of a thing are its own arguments: their names, kinds and defaults are read off its signature, and there is
no second list. `package.module:name` is code of the user's own; a text out of a file never makes us import it.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, overload

from zosam.names import find, nearest, settings_of

Thing = Callable[..., Any]
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
_OWN: dict[str, Thing] = {}  # what this process was asked to import


@dataclass(frozen=True)
class Choice:
    """A thing by its name with its settings; `str` is the shortest way to write it, `whole` the longest."""

    name: str
    whole: str
    """With every setting, those at their default too: two choices are the same if this is."""
    settings: Mapping[str, Any] = field(compare=False)
    """Those that are not at their default."""

    def __str__(self) -> str:
        return _written(self.name, self.settings)


@dataclass(frozen=True)
class Kind:
    """A field of a run that chooses one thing of many."""

    word: str
    table: Mapping[str, Thing]
    given: frozenset[str] = frozenset()
    """Arguments that are no settings: the run gives them."""
    filled: frozenset[str] = frozenset()
    """Settings that the run fills in if they are not set."""
    parts: Mapping[str, type] = field(default_factory=dict)
    """What can stand in a setting as a call, such as gaussian(4)."""
    packages: Mapping[str, Callable[[str], Thing]] = field(default_factory=dict)
    """Packages whose things go by package:name."""

    def read(self, text: str, trusted: bool = True) -> Choice:
        """The choice that a text spells; code of the user's own is imported only if the text is `trusted`."""
        name, rest = self._split(text)
        own = name not in self.table and ":" in name
        if own and name.partition(":")[0] in self.packages:
            if rest:
                raise ValueError(f"{name} takes no settings here")
            return Choice(name, name, {})
        if own and not trusted and name not in _OWN:
            return Choice(name, text, dict(map(_pair, _pieces(rest))))
        if own and trusted:
            _import(name, self.word)
        thing = self.thing(name)
        left_out = self.given | self.filled
        known = {n: p for n, p in settings_of(thing).items() if n not in self.given and p.kind is not p.VAR_KEYWORD}
        settings = _arguments(thing, name, _pieces(rest), known, self.parts)
        defaults = {n: _default(thing, p) for n, p in known.items() if n not in left_out}
        missing = [n for n, d in defaults.items() if d is inspect.Parameter.empty and n not in settings]
        if missing:
            raise ValueError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=...")
        changed = {n: v for n, v in sorted(settings.items()) if n not in defaults or v != defaults[n]}
        return Choice(name, _written(name, dict(sorted((defaults | settings).items())), whole=True), changed)

    def knows(self, choice: Choice) -> bool:
        """Whether its code is here: ours, or of the user's own and asked for by name."""
        return choice.name in self.table or choice.name in _OWN

    def thing(self, name: str) -> Thing:
        """What goes by that name."""
        if name in _OWN:
            return _OWN[name]
        head, colon, rest = name.partition(":")
        if colon and head in self.packages:
            return self.packages[head](rest)
        if colon and name not in self.table:
            raise ValueError(f"{name} is code that nobody here has asked for: if you trust it, name it yourself")
        return find(self.table, name, self.word)

    def _split(self, text: str) -> tuple[str, str]:
        """The name, which has a colon of its own if it is of a package or module, and the settings."""
        head, _, rest = (part.strip() for part in text.partition(":"))
        second = rest.partition(":")[0]
        if head in self.table or "=" in second or not re.match(r"[^\W\d]", second):
            return head, rest
        if head in self.packages:
            return f"{head}:{rest}", ""
        return f"{head}:{second.strip()}", rest.partition(":")[2]


class Chosen:
    """A field of a frozen dataclass that holds a `Choice` and takes its spelling as well; of the class, its default."""

    def __init__(self, kind: Kind, default: str) -> None:
        self.kind, self.default = kind, default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, run: None, owner: type) -> Chosen: ...
    @overload
    def __get__(self, run: object, owner: type) -> Choice: ...
    def __get__(self, run: object | None, owner: type) -> Choice | Chosen:
        if run is None:
            return self
        found: Choice = run.__dict__[self.name]
        return found

    def __set__(self, run: object, value: str | Choice | Chosen) -> None:
        value = self.default if value is self else value
        if not isinstance(value, (str, Choice)):
            raise ValueError(f"{self.name} must be text, not {value!r:.100}")
        run.__dict__[self.name] = self.kind.read(value) if isinstance(value, str) else value


def typed(name: str, value: Any, wanted: Any) -> Any:
    """A value that came from anywhere, if it is of the kind that is wanted; a whole number may stand for any."""
    kinds = _members(wanted)
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(value, str):
            return find({str(o): o for o in get_args(kind)}, value, name)
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value)
        if kind is not float and type(value) is kind and not (kind is int and abs(value) > 1 << 62):
            return value
    words = " or ".join(WORDS.get(k, "text") for k in kinds)
    raise ValueError(f"{name} must be {words}, not {value!r:.100}")


def _arguments(
    thing: Thing,
    name: str,
    pieces: Iterable[str],
    known: Mapping[str, inspect.Parameter],
    parts: Mapping[str, type],
) -> dict[str, Any]:
    """The arguments that pieces such as `every=2` are for `thing`; without a name only where it is a part."""
    settings: dict[str, Any] = {}
    places = iter(known if dataclasses.is_dataclass(thing) else ())
    for piece in pieces:
        key, text = _pair(piece) if re.match(r"\w+\s*=", piece) else (next(places, None), piece)
        if key is None:
            raise ValueError(f"{name}: expected key=value, found {piece!r}")
        if key not in known:
            raise ValueError(
                f"{name} has no setting {key!r}: {nearest(key, known)}it takes {', '.join(known) or 'none'}"
            )
        if key in settings:
            raise ValueError(f"{name}: {key} is set twice")
        try:
            settings[key] = _value(text, known[key], parts)
        except ValueError as error:
            raise ValueError(f"{name}: {key} must be {error}, not {text}") from None
    return settings


def _value(text: str, parameter: inspect.Parameter, parts: Mapping[str, type]) -> Any:
    """What a text stands for, by the annotation; a ValueError says what would do."""
    wanted = parameter.annotation
    if wanted in (inspect.Parameter.empty, Any) or isinstance(wanted, str):
        unknown = parameter.default in (None, inspect.Parameter.empty)
        wanted = int | float | bool | None | str if unknown else type(parameter.default)
    members, refused = _members(wanted), []
    fitting = {name: part for name, part in parts.items() if _any_fits([part], members)}
    for kind in sorted(members, key=lambda k: k is str):  # any text is text
        try:
            return _part(text, fitting, parts) if _any_fits(fitting.values(), [kind]) else _as(kind, text, parts)
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
        if text in options:
            return options[text]
        raise ValueError(_one_of(options, text))
    if get_origin(kind) in (Sequence, tuple, list):
        if not (text.startswith("(") and text.endswith(")")):
            raise ValueError("a list such as (a,b)")
        item = inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY, annotation=get_args(kind)[0])
        return tuple(_value(piece, item, parts) for piece in _pieces(text[1:-1]))
    if kind in (bool, type(None)):
        options = {"true": True, "false": False} if kind is bool else {"none": None}
        if low in options:
            return options[low]
    elif kind in (int, float):
        return _number(kind, text)
    elif kind is str:
        return text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] == "'" else text
    else:
        raise TypeError(kind)
    raise ValueError(WORDS[kind])


def _number(kind: type, text: str) -> int | float:
    over, slash, under = text.partition("/")
    if len(text) > 40 or (kind is int and not re.fullmatch(r"[+-]?\d{1,18}", text)):
        raise ValueError(WORDS[kind])
    try:
        if kind is int:
            return int(text)
        return int(over) / int(under) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(WORDS[kind]) from None


def _part(text: str, fitting: Mapping[str, type], parts: Mapping[str, type]) -> Any:
    """The part that a call such as gaussian(4) makes; its own checks speak for themselves."""
    call = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text, re.DOTALL)
    if call is None or call[1] not in fitting:
        raise ValueError(_one_of(fitting, text if call is None else call[1]))
    cls = fitting[call[1]]
    return cls(**_arguments(cls, call[1], _pieces(call[2] or ""), settings_of(cls), parts))


def _any_fits(parts: Iterable[type], kinds: Iterable[Any]) -> bool:
    """Whether any of the parts is of any of the kinds: of that class, or called with as many arguments."""

    def fits(part: type, kind: Any) -> bool:
        if get_origin(kind) is not Callable:
            return isinstance(kind, type) and kind in part.__mro__
        call = part.__dict__.get("__call__")
        return call is not None and len(inspect.signature(call).parameters) - 1 == len(get_args(kind)[0])

    return any(fits(part, kind) for part in parts for kind in kinds)


def _one_of(options: Mapping[str, Any], text: str) -> str:
    near = nearest(text, options)
    return f"one of {', '.join(options)}" + (f" ({near.strip()})" if near else "")


def _default(thing: Thing, parameter: inspect.Parameter) -> Any:
    """The default of an argument; where that is None and a class has one of that name for itself, its own."""
    if parameter.default is None and isinstance(thing, type):
        own = getattr(thing, parameter.name, None)
        return own if isinstance(own, (str, int, float, tuple)) else None
    return parameter.default


def _members(wanted: Any) -> list[Any]:
    return list(get_args(wanted)) if get_origin(wanted) in (Union, types.UnionType) else [wanted]


def _pieces(text: str) -> list[str]:
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


def _pair(piece: str) -> tuple[str, str]:
    key, equals, value = piece.partition("=")
    if not equals:
        raise ValueError(f"expected key=value, found {piece!r}")
    return key.strip(), value.strip()


def _written(name: str, settings: Mapping[str, Any], whole: bool = False) -> str:
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
    text = str(value)
    return "'" + text.replace("'", "''") + "'" if set(text) & set(",()' ") or not text else text


def _import(name: str, word: str) -> None:
    """Find `package.module:name`, also beside where the command is run."""
    module, _, attribute = name.partition(":")
    if not all(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", part) for part in (module, attribute)):
        raise ValueError(f"{word} {name}: expected package.module:name")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        _OWN[name] = operator.attrgetter(attribute)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ValueError(f"{word} {name}: there is no module {error.name!r} to import") from error
    except AttributeError as error:
        raise ValueError(f"{word} {name}: {module} has no {attribute!r}") from error
    if not callable(_OWN[name]):
        raise ValueError(f"{word} {name} is a {type(_OWN.pop(name)).__name__}, not a class or function")
