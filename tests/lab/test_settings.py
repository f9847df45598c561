"""Things chosen by name: read by their own signatures, checked, with every default filled in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from zosam.lab.data import DATA_SETS
from zosam.lab.models import NETWORKS
from zosam.lab.settings import Choice, Kind, typed

Probe = Callable[[object], object]


@dataclass(frozen=True)
class Gaussian:
    directions: int = 1

    def __call__(self, optimizer): ...

    def __post_init__(self):
        if self.directions < 1:
            raise ValueError(f"1 or more directions, not {self.directions}")


@dataclass(frozen=True)
class Momentum:
    def __call__(self, optimizer): ...


@dataclass(frozen=True)
class Central:
    radius: float | None = None
    batch_fraction: float = 1

    def __call__(self, optimizer, probes, closure): ...


@dataclass(frozen=True)
class Pair:
    pass


class Climber:
    budget = "erk"

    def __init__(
        self,
        base: object,
        rho: float = 0.05,
        *,
        probe: Probe = Gaussian(1),  # noqa: B008
        decide: Central | Pair = Central(),  # noqa: B008
        every: int = 1,
        scale: Literal["filter", "element"] | None = None,
        budget: str | Callable[[], object] | None = None,
        dense: Sequence[str | type] | str = (),
        noisy: bool = False,
        until: int | None = None,
    ) -> None: ...


PARTS = {"gaussian": Gaussian, "momentum": Momentum, "central": Central, "pair": Pair}
KIND = Kind("climber", {"climber": Climber}, frozenset({"base", "rho"}), PARTS)


def same(a, b):
    return KIND.read(a) == KIND.read(b) and KIND.read(a).whole == KIND.read(b).whole


def test_defaults_are_filled_in():
    assert KIND.read("climber").whole == (
        "climber:budget=erk,decide=central(radius=none,batch_fraction=1),dense=(),every=1,noisy=false,"
        "probe=gaussian(directions=1),scale=none,until=none"
    )
    assert same("climber", "climber:every=1")
    assert same("climber", " climber: probe=gaussian ,every = 1")
    assert same("climber", "climber:probe=gaussian(1),decide=central(batch_fraction=1.0)")
    assert same("climber", "climber:budget=erk")  # None stands for the class's own
    assert same("climber:probe=gaussian(4),every=2", "climber:every=2,probe=gaussian(directions=4)")
    assert not same("climber", "climber:until=5")
    assert not same("climber", "climber:probe=momentum")


def test_the_shortest_spelling_is_that_of_what_was_changed():
    choice = KIND.read("climber:every=1,decide=central(batch_fraction=1/8),scale=filter,dense=(first,last)")
    assert choice.settings == {"decide": Central(batch_fraction=0.125), "dense": ("first", "last"), "scale": "filter"}
    assert str(choice) == "climber:decide=central(batch_fraction=0.125),dense=(first,last),scale=filter"
    assert KIND.read(str(choice)) == choice == KIND.read(choice.whole)
    assert KIND.read(choice.whole).settings == choice.settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("climer", "no climber is called 'climer': did you mean 'climber'"),
        ("climber:evry=2", "no setting 'evry': did you mean 'every'"),
        ("climber:every", "expected key=value"),
        ("climber:every=2.5", "every must be a whole number, not 2.5"),
        ("climber:every=2,every=3", "set twice"),
        (
            "climber:scale=fliter",
            r"one of filter, element \(did you mean 'filter'\?\) or none, not fliter",
        ),
        ("climber:decide=central(batch_fraction=nan)", "batch_fraction must be a number"),
        ("climber:noisy=maybe", "noisy must be true or false"),
        ("climber:probe=gausian(4)", "did you mean 'gaussian'"),
        ("climber:probe=gaussian(many)", "gaussian: directions must be a whole number"),
        ("climber:probe=gaussian(0)", "1 or more directions, not 0"),
        ("climber:probe=gaussian(1,2)", "expected key=value"),
        ("climber:probe=central()", "must be one of gaussian, momentum"),
        ("climber:probe=3", "must be one of gaussian, momentum"),
        ("climber:decide=central(batch_fraction=1/0)", "batch_fraction must be a number"),
        ("climber:decide=central(radius=much)", "radius must be a number or none"),
        ("climber:probe=gaussian(1", "do not match"),
        ("climber:probe=gaussian)1(", "do not match"),
        (f"climber:every={'9' * 400}", "whole number"),
        ("nowhere.to.be:found", "there is no module 'nowhere' to import"),
        ("os:found", "os has no 'found'"),
        ("os:sep", "not a class or function"),
        ("../../x:y", r"expected package\.module:name"),
    ],
)
def test_nonsense_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        KIND.read(text)


def test_what_has_no_default_is_asked_for():
    kind = Kind("thing", {"thing": lambda size: size})
    with pytest.raises(ValueError, match="thing needs size: write thing:size="):
        kind.read("thing")
    assert kind.read("thing:size=3").settings == {"size": 3}
    assert kind.read("thing:size=x").settings == {"size": "x"}


@pytest.mark.parametrize("text", ["/a path/with, comma", "it's", "(x)", "", "plain"])
def test_any_text_can_be_written(text):
    kind = Kind("thing", {"thing": take_path})
    spelled = "'" + text.replace("'", "''") + "'"
    choice = kind.read(f"thing:path={spelled}")
    assert choice.settings.get("path", "") == text
    assert kind.read(choice.whole) == choice


def take_path(path: str = "") -> None: ...


@pytest.mark.parametrize("text", ["none", "True", "1", "1/2", "-3e-4"])
def test_text_that_looks_like_something_else_is_not_taken_for_it(text):
    kind = Kind("thing", {"thing": lambda name=None: name, "path": take_path, "word": take_word})
    bare, quoted = kind.read(f"thing:name={text}"), kind.read(f"thing:name='{text}'")
    assert bare.settings.get("name") != quoted.settings["name"] == text
    assert bare != quoted == kind.read(quoted.whole) == kind.read(str(quoted))
    assert kind.read(f"path:path={text}") == kind.read(f"path:path='{text}'")  # that one takes text only
    assert kind.read("word:word=none") == kind.read("word:word='none'") == kind.read(kind.read("word").whole)


def take_word(word: Literal["none", "some"] = "none") -> None: ...


def test_code_of_ones_own_lies_beside_where_the_command_is_run(tmp_path, monkeypatch):
    (tmp_path / "own_climber_module.py").write_text("class Own:\n    def __init__(self, base, k: int = 3): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    unread = KIND.read("own_climber_module:Own:k=4", trusted=False)
    assert "own_climber_module" not in sys.modules
    assert not KIND.knows(unread)
    with pytest.raises(ValueError, match="no file may start"):
        KIND.thing(unread.name)
    with pytest.raises(ValueError, match="on the command line: --data own_climber_module:Own"):
        DATA_SETS.thing(unread.name)
    with pytest.raises(ValueError, match="on the command line: --model own_climber_module:Own"):
        NETWORKS.thing(unread.name)
    choice = KIND.read("own_climber_module:Own")
    assert choice.whole == "own_climber_module:Own:k=3"
    assert KIND.read("own_climber_module:Own:k=4") == unread
    assert KIND.thing(choice.name).__name__ == "Own"
    with pytest.raises(ValueError, match="k must be a whole number"):
        KIND.read("own_climber_module:Own:k=x")


def test_values_from_anywhere_are_of_their_kind():
    assert typed("lr", 1, float) == 1.0
    assert type(typed("lr", 1, float)) is float
    assert typed("rho", None, float | None) is None
    assert typed("base", "sgd", Literal["sgd", "adamw"]) == "sgd"
    for value, wanted, message in [
        (True, float, "lr must be a number"),
        (1e308, float, "lr must be a number"),
        (10**400, int, "lr must be a whole number"),
        ("adam", Literal["sgd", "adamw"], "did you mean 'adamw'"),
        (1, bool, "true or false"),
        ([], float | None, "a number or none"),
    ]:
        with pytest.raises(ValueError, match=message):
            typed("lr", value, wanted)


def test_a_choice_is_its_whole_spelling():
    assert Choice("a", "a:k=1", {"k": 1}) == Choice("a", "a:k=1", {})
    assert len({Choice("a", "a:k=1", {}), Choice("a", "a:k=1", {"k": 1})}) == 1


def test_what_the_run_sets_is_refused_with_the_way_to_set_it():
    with pytest.raises(ValueError, match=r"climber:rho=0\.3: rho is set by the run itself, with --rho: leave it out"):
        KIND.read("climber:rho=0.3")
