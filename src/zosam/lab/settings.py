"""Things chosen by name: `zosam:every=2,probe=gaussian(4)` is read, checked, and every default filled in.

The settings of a thing are its own arguments: their names, kinds and defaults are read off its signature, and there is
no second list. `package.module:name` is code of the user's own; a text out of a file never makes us import it.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, overload

from zosam.lab.spelling import WORDS, arguments, members, pair, pieces, written
from zosam.names import default_of, find, nearest, settings_of

Thing = Callable[..., Any]
SET_BY_RUN = {
    "rho": "--rho", "sparsity": "--sparsity", "seed": "--seed", "base": "--base", "lr": "--lr", "epochs": "--epochs",
    "steps": "--epochs", "batch_size": "--batch-size",
}  # fmt: skip
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
        return written(self.name, self.settings)


@dataclass(frozen=True)
class Kind:
    """A field of a run that chooses one thing of many."""

    word: str
    table: Mapping[str, Thing]
    given: frozenset[str] = frozenset()
    """Arguments that are no settings: the run gives them."""
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
            return Choice(name, text, dict(map(pair, pieces(rest))))
        if own and trusted:
            _import(name, self.word)
        thing = self.thing(name)
        known = {n: p for n, p in settings_of(thing).items() if n not in self.given and p.kind is not p.VAR_KEYWORD}
        for key in (piece.partition("=")[0].strip() for piece in pieces(rest)):
            if key in self.given and key in SET_BY_RUN:
                raise ValueError(f"{name}:{rest}: {key} is set by the run itself, with {SET_BY_RUN[key]}: leave it out")
        defaults = {n: default_of(thing, n) for n in known}
        usual = {written("", {n: d}, whole=True)[1:] for n, d in defaults.items()}  # also what only code can say
        settings = arguments(thing, name, [p for p in pieces(rest) if p not in usual], known, self.parts)
        missing = [n for n, d in defaults.items() if d is inspect.Parameter.empty and n not in settings]
        if missing:
            raise ValueError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=...")
        changed = {n: v for n, v in sorted(settings.items()) if n not in defaults or v != defaults[n]}
        return Choice(name, written(name, dict(sorted((defaults | settings).items())), whole=True), changed)

    def knows(self, choice: Choice) -> bool:
        """Whether its code is here: ours or a package's, or of the user's own and asked for by name."""
        return choice.name in self.table or choice.name in _OWN or choice.name.partition(":")[0] in self.packages

    def thing(self, name: str) -> Thing:
        """What goes by that name."""
        if name in _OWN:
            return _OWN[name]
        head, colon, rest = name.partition(":")
        if colon and head in self.packages:
            return self.packages[head](rest)
        if colon and name not in self.table:
            flag = {"data set": "--data"}.get(self.word, f"--{self.word.split()[-1]}")
            raise ValueError(
                f"{name} is your own code, which no file may start: if you trust it, name it as the {self.word}"
                f" (on the command line: {flag} {name})"
            )
        return find(self.table, name, self.word)

    def _split(self, text: str) -> tuple[str, str]:
        """The name, which has a colon of its own if it is of a package or module, and the settings."""
        head, _, rest = (part.strip() for part in text.partition(":"))
        if head in self.packages:  # what follows is a name of theirs, or a folder
            return f"{head}:{rest}", ""
        second = rest.partition(":")[0]
        if head in self.table or "=" in second or not re.match(r"[^\W\d]", second):
            return head, rest
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
    kinds = members(wanted)
    for kind in kinds:
        if get_origin(kind) is Literal and isinstance(value, str):
            return find({str(o): o for o in get_args(kind)}, value, name)
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value) + 0.0  # there is one zero
        if kind is not float and type(value) is kind and not (kind is int and abs(value) > 1 << 62):
            return value
    words = " or ".join(WORDS.get(k, "text") for k in kinds)
    raise ValueError(f"{name} must be {words}, not {value!r:.100}")


def _import(name: str, word: str) -> None:
    """Find `package.module:name`, also beside where the command is run."""
    module, _, attribute = name.partition(":")
    if not all(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", part) for part in (module, attribute)):
        raise ValueError(f"{word} {name}: expected package.module:name")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ValueError(f"{word} {name}: there is no module {error.name!r} to import, here or installed") from error
    try:
        _OWN[name] = operator.attrgetter(attribute)(found)
    except AttributeError as error:
        near = nearest(attribute, vars(found))
        raise ValueError(f"{word} {name}: {module} has no {attribute!r}{near and f': {near.rstrip()}'}") from error
    if not callable(_OWN[name]):
        raise ValueError(f"{word} {name} is a {type(_OWN.pop(name)).__name__}, not a class or function")
