"""The missing runs on a Ray cluster: one trial each, retried when its worker dies, written once."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from zosam.lab.paper.results_store import Book
from zosam.lab.paper.sweep import Outcome, missing
from zosam.lab.run import Run, run
from zosam.lab.where import Where


def on_ray(
    runs: Iterable[Run],
    book: Book,
    *,
    address: str | None = None,
    where: Where = Where(),
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
    told: Callable[[int, int], None] = lambda done, of: None,
) -> Outcome:
    """Train them on the cluster at `address`; without one, on a cluster of this machine that ends with the call.

    `book.root` must lie where all machines see it. A trial takes `cpus` and `gpus` of its machine. One whose worker
    dies goes on from its checkpoint, up to `retries` times; one that fails does not stop the others. `told` hears
    how many of how many have ended.
    """
    ray = _ray()
    todo, outcome = missing(runs, book), Outcome()
    ours = not ray.is_initialized()
    if ours:
        quiet = {"include_dashboard": False} if address is None else {}
        ray.init(address=address, log_to_driver=False, **quiet)
    try:
        trial = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_trial)
        root = os.path.abspath(book.root)
        waiting = {trial.remote(r.written(), root, vars(where), max(1, int(cpus))): r for r in todo}
        told(0, len(todo))
        while waiting:
            for end in ray.wait(list(waiting), timeout=1.0)[0]:
                now = waiting.pop(end)
                try:
                    ray.get(end)
                    outcome.trained.append(now)
                except (ray.exceptions.RayError, ValueError, RuntimeError, ArithmeticError) as error:
                    outcome.failed[now] = str(error).strip().splitlines()[-1]
                told(len(todo) - len(waiting), len(todo))
    finally:
        if ours:
            ray.shutdown()
    return outcome


def _trial(fields: dict[str, Any], root: str, where: dict[str, Any], threads: int) -> None:
    run(Run(**fields).stripped(), root, **{**where, "threads": where["threads"] or threads})


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ImportError("sweeps on a cluster need Ray: pip install 'zosam[ray]'") from None
