"""Train what a command still lacks: say how much it is and what it costs, then how it ended."""

from __future__ import annotations

import sys

from rich.console import Console

from zosam.distributed.ranks import leads
from zosam.lab.callbacks import Callbacks
from zosam.lab.paper.cluster import on_ray
from zosam.lab.paper.cost import Costs
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.sweep import Outcome, missing, part, seconds, sweep
from zosam.lab.report.finding import duration
from zosam.lab.run import Run
from zosam.lab.watching import Watching
from zosam.lab.where import Where


def lacking(runs: list[Run], book: Book, title: str, shard: str | None, say: Console) -> list[Run]:
    """What is missing of the runs, or of a part of them; and say so."""
    mine = runs if shard is None else part(runs, shard)
    todo = missing(mine, book)
    say.print(f"{title}: {len(mine)} runs, {len(mine) - len(todo)} finished, {len(todo)} missing", highlight=False)
    return todo


def train_missing(
    runs: list[Run],
    book: Book,
    title: str,
    budget: str | None,
    shard: str | None,
    ray: tuple[str, ...] | None,
    cpus: float,
    gpus: float,
    where: Where,
    say: Console,
) -> None:
    """Train what is missing; of the processes that torchrun has started only the first comes back."""
    todo = lacking(runs, book, title, shard, say)
    if todo:
        _tell(_trained(todo, book, budget, ray, cpus, gpus, where, say), say)
    if not leads():
        sys.exit(0)


def _trained(
    todo: list[Run],
    book: Book,
    budget: str | None,
    ray: tuple[str, ...] | None,
    cpus: float,
    gpus: float,
    where: Where,
    say: Console,
) -> Outcome:
    cost = duration(Costs(book, where).total(todo))
    say.print(f"To train them takes about {cost} here, one after the other.", highlight=False)
    with Watching(say, len(todo)) as shown:
        if ray is not None:
            outcome = on_ray(
                todo, book, address=ray[0] if ray else None, where=where, cpus=cpus, gpus=gpus,
                told=lambda done, of: shown.has_finished(done),
            )  # fmt: skip
        else:

            def watch(run: Run) -> Callbacks:
                shown.has_finished(len(todo) - len(missing(todo, book)))
                return shown.callbacks(run.folder)

            outcome = sweep(todo, book, where=where, budget=seconds(budget) if budget else None, watch=watch)
            shown.has_finished(len(outcome.trained))
    return outcome


def _tell(outcome: Outcome, say: Console) -> None:
    for run, why in outcome.failed.items():
        say.print(f"failed: {run.folder}: {why}", style="red", highlight=False, markup=False)
    if outcome.left:
        say.print(f"{len(outcome.left)} runs did not fit into the budget; the same command goes on with them.")
