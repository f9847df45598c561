"""Train what a table or a figure still lacks: resumable, any number of processes on one folder, none twice."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from zosam.distributed.ranks import Ranks, joined
from zosam.lab.callbacks import Callbacks
from zosam.lab.locks import Busy, is_held, work_through
from zosam.lab.paper.cost import Costs
from zosam.lab.paper.results_store import Book
from zosam.lab.run import Run, run
from zosam.lab.where import Where

Watch = Callable[[Run], Callbacks]  # is told which run begins, and gives what is told how it goes


@dataclass
class Outcome:
    """How a sweep ended."""

    trained: list[Run] = field(default_factory=list)
    failed: dict[Run, str] = field(default_factory=dict)
    left: list[Run] = field(default_factory=list)  # for want of time


def with_seeds(runs: Iterable[Run], seeds: int) -> list[Run]:
    """Each run once, under each seed; all of the first seed go first, so that every cell soon has a value."""
    if seeds < 1:
        raise ValueError(f"seeds must be 1 or more, not {seeds}")
    once = list(dict.fromkeys(runs))
    return [replace(r, seed=seed) for seed in range(seeds) for r in once]


def missing(runs: Iterable[Run], book: Book) -> list[Run]:
    """Those that nobody has finished, each once."""
    return [r for r in dict.fromkeys(runs) if book.get(r) is None]


def part(runs: Iterable[Run], shard: str) -> list[Run]:
    """The runs that fall to shard "i/n", i from 0: by their address, so the same on every machine."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not int(found[1]) < int(found[2]):
        raise ValueError(f"a shard is i/n with i from 0 to n - 1, such as 0/4; not {shard}")
    return [r for r in runs if int(r.key, 16) % int(found[2]) == int(found[1])]


def sweep(
    runs: Iterable[Run],
    book: Book,
    *,
    where: Where = Where(),
    budget: float | None = None,
    watch: Watch = lambda _: Callbacks(),
    wait: float = 2.0,
) -> Outcome:
    """Train them one after the other, until all are finished or `budget` seconds are spent.

    What another process trains is left to it and waited for at the end. A run that fails does not stop the others.
    A run is begun only if it is expected to end within the budget. Processes that torchrun has started train each run
    together; there a run that fails stops them all, and nobody else may be in the folder.
    """
    with where.here() as device, joined(device) as team:
        return _sweep(runs, book, where, budget, watch, wait, team)


def _sweep(
    runs: Iterable[Run], book: Book, where: Where, budget: float | None, watch: Watch, wait: float, team: Ranks
) -> Outcome:
    outcome, began, costs = Outcome(), time.monotonic(), Costs(book, where)

    def train(now: Run) -> None:
        if budget is not None and any(team.any(time.monotonic() - began + costs.seconds(now) > budget)):
            outcome.left.append(now)
            return
        if team.world == 1 and is_held(book.root / now.folder):
            raise Busy  # before anybody is told that it begins
        try:
            run(now.stripped(), book.root, **vars(watch(now)), **vars(where))
            outcome.trained.append(now)
        except Busy as error:
            if team.world > 1:
                raise RuntimeError(str(error)) from error
            raise
        except (ValueError, RuntimeError, ArithmeticError, OSError) as error:
            if team.world > 1:
                raise
            outcome.failed[now] = f"{type(error).__name__}: {error}"

    work_through(missing(runs, book), lambda now: book.get(now) is not None, train, wait)
    return outcome


def seconds(text: str) -> float:
    """A length of time such as 90s, 30m, 2h or 1h30m, in seconds."""
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"a budget is a time such as 90s, 30m or 2h, not {text!r}")
    return sum(float(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True))
