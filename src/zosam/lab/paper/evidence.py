"""What is asked of the methods, and how they are tuned for it: arms, grids and questions as data in evidence.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from zosam.lab.measure.estimate import Estimate, difference, estimate
from zosam.lab.paper import recipes
from zosam.lab.paper.results_store import Book, is_idle
from zosam.lab.paper.source import read
from zosam.lab.record import Record
from zosam.lab.report.arms import short
from zosam.lab.run import Run
from zosam.names import find

NETWORK = "resnet32"  # what the tiers call the network that stands in for the paper's
TUNING = "tuning"
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """The trials of a method: one for each pair of a setting of its own and a weight decay."""

    method: str
    axes: dict[str, list[float]]
    """The values of each setting, from small to large."""
    trials: dict[tuple[float, ...], Run]

    def accuracies(self, book: Book) -> dict[tuple[float, ...], float]:
        """Accuracy on held-out pictures after the last epoch, in per cent, of the trials that are finished."""
        found = {at: book.get(run) for at, run in self.trials.items()}
        return {at: 100 * float(r.last["validation_accuracy"]) for at, r in found.items() if r is not None}

    def best(self, book: Book) -> dict[str, float] | None:
        """The settings of the best trial; None before all are finished."""
        found = self.accuracies(book)
        if len(found) < len(self.trials):
            return None
        best = max(found.items(), key=lambda trial: trial[1])[0]
        return dict(zip(self.axes, best, strict=True))

    def at_edge(self, best: Fields) -> list[str]:
        """The settings whose best value is the smallest or the largest that was tried: the grid may be too small."""
        return [name for name, values in self.axes.items() if best[name] in (values[0], values[-1])]


@dataclass(frozen=True)
class Entry:
    """An arm at one place, with one value of what the question varies."""

    group: str
    label: str
    run: Run | None
    """At seed 0; None while the grid of its method is not finished."""
    versus: Run | None
    at: tuple[float, ...] = ()
    """Where it is shown: the number of its place, and the values that the question varies."""


@dataclass(frozen=True)
class Question:
    """A set of trainings that answers something."""

    name: str
    title: str
    seeds: int
    entries: tuple[Entry, ...]
    waits_for: tuple[str, ...]
    """Methods whose grids must be finished before the arms that they tune can be trained."""
    versus: str
    """What its arms are compared with."""

    @property
    def shown(self) -> list[Entry]:
        """The entries as people read them; they are trained in the order of what they decide."""
        return sorted(self.entries, key=lambda entry: entry.at)

    def runs(self) -> list[Run]:
        """Every training at seed 0, once."""
        both = ((e.run, e.versus) for e in self.entries)
        return list(dict.fromkeys(r for pair in both for r in pair if r is not None))


@dataclass(frozen=True)
class Row:
    """What an entry came to."""

    group: str
    label: str
    accuracy: Estimate
    gap: Estimate | None
    """The paired difference to what it is compared with."""
    train_loss: float
    cpu_seconds: float
    idle: bool
    """Whether every one of its trainings had its core to itself."""


def names() -> list[str]:
    """Tuning, and every question, in the order of what they decide."""
    first, *others = read("evidence")["questions"]
    return [first, TUNING, *others]


def grids() -> list[Grid]:
    """The grid of every method."""
    content = read("evidence")["tuning"]
    found = []
    for method, given in content["methods"].items():
        axes = {k: v for k, v in given.items() if k not in ("optimizer", "weight_decay")}
        axes["weight_decay"] = given.get("weight_decay", content["weight_decay"])
        start = replace(_start(content["place"], given["optimizer"]), **content["run"])
        trials = {at: replace(start, **dict(zip(axes, at, strict=True))) for at in product(*axes.values())}
        found.append(Grid(method, axes, trials))
    return found


def question(name: str, book: Book, guess: bool = False) -> Question:
    """The question called `name`; the settings that its arms were tuned to are those that the book's trials say.

    With `guess` an arm whose grid is not finished has the settings of its tier: it costs as much.
    """
    content = find(read("evidence")["questions"], name, "question")
    best = {} if content.get("fixed") else {grid.method: grid.best(book) for grid in grids()}
    vary, versus = content.get("vary", {}), content["versus"]
    missing: dict[str, None] = {}

    def training(arm: str, place: str, varied: Fields) -> Run | None:
        fields = _arm(arm)
        method = None if content.get("fixed") else fields["tuned"]
        if method is not None and best[method] is None:
            missing[method] = None
            if not guess:
                return None
        tuned = {} if method is None else best[method] or {}
        return replace(_start(place, fields["optimizer"]), **{**tuned, **fields["run"], **varied})

    entries = []
    for place, values in product(content["places"], product(*vary.values())):
        varied = dict(zip(vary, values, strict=True))
        told = [
            read("evidence")["places"][place]["label"],
            *(f"{k.replace('_', ' ')} {short(v)}" for k, v in varied.items()),
        ]
        other = training(versus, place, varied | content.get("versus_at", {}))
        for arm in content["arms"]:
            own = training(arm, place, varied)
            beside, at = None if own == other else other, (content["places"].index(place), *values)
            entries.append(Entry(", ".join(told), _arm(arm)["label"], own, beside, at))
    return Question(
        name, content["title"], content.get("seeds", 3), tuple(entries), tuple(missing), _arm(versus)["label"]
    )


def rows(asked: Question, book: Book) -> Iterator[Row]:
    """What is known of each entry; those without a finished training are left out."""
    for entry in asked.shown:
        found = row(entry, range(asked.seeds), book)
        if found is not None:
            yield found


def row(entry: Entry, seeds: Iterable[int], book: Book) -> Row | None:
    """What is known of an entry over these seeds; None if no training of it is finished."""
    own = _records(entry.run, seeds := list(seeds), book)
    if not own:
        return None
    other = _records(entry.versus, seeds, book)
    accuracy = {seed: _accuracy(r) for seed, r in own.items()}
    return Row(
        entry.group,
        entry.label,
        estimate(accuracy.values()),
        difference(accuracy, {seed: _accuracy(r) for seed, r in other.items()}),
        fmean(float(r.last["train_loss"]) for r in own.values()),
        fmean(sum(float(e.get("cpu_seconds", e["seconds"])) for e in r.epochs) for r in own.values()),
        all(is_idle(r.epochs) for r in own.values()),
    )


def _start(place: str, optimizer: str) -> Run:
    """The training at a place under an optimizer of recipes.toml, before anything is tuned or varied."""
    content = find(read("evidence")["places"], place, "place")
    words = {k: v for k, v in content.items() if k in ("data", "method", "sparsity")}
    found = recipes.tier(content["tier"]).run(network=NETWORK, optimizer=optimizer, **words)
    if found is None:
        raise ValueError(f"the tier {content['tier']} has no training for the place {place}")
    return replace(found, **content.get("run", {}))


def _arm(name: str) -> dict[str, Any]:
    """An arm with all that it takes from the one it is like."""
    own: dict[str, Any] = find(read("evidence")["arms"], name, "arm")
    base: dict[str, Any] = _arm(own["like"]) if "like" in own else {"tuned": None, "run": {}}
    return base | own | {"run": base["run"] | own.get("run", {})}


def _records(run: Run | None, seeds: Iterable[int], book: Book) -> dict[int, Record]:
    found = {} if run is None else {seed: book.get(replace(run, seed=seed)) for seed in seeds}
    return {seed: record for seed, record in found.items() if record is not None}


def _accuracy(record: Record) -> float:
    """On the test set after the last epoch, in per cent; of the averaged weights where there are some."""
    return 100 * float(record.last.get("ema_test_accuracy", record.last["test_accuracy"]))
