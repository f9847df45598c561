"""Images per second for tables and figures: a row and the one it is compared with take turns in one process.

A training's own record says how fast it went beside whatever else the machine did meanwhile, so no speed is ever
taken from there. What was measured is kept in the run's folder, as a note that goes along into lines of results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from zosam.lab.assemble import assemble
from zosam.lab.callbacks import Tick, nobody
from zosam.lab.device import CPU, about, choose, current, wait_for
from zosam.lab.locks import alone_with, work_through
from zosam.lab.measure.throughput import affordable
from zosam.lab.paper.notes import SPEED
from zosam.lab.paper.results_store import Book
from zosam.lab.record import made_with
from zosam.lab.run import Run
from zosam.lab.terminal import begin, progress_bar
from zosam.lab.where import Where
from zosam.optim import SharpnessAware

ROUNDS, TURNS = 5, 3  # a round counts the fastest of its turns: a moment of disturbance does not
PATIENCE = 60.0  # seconds for a run; what would take longer is measured on fewer pictures
ABOUT = (
    "Images per second are not those of the trainings: each row takes turns with the one it is compared with, step by"
    f" step in one process, {ROUNDS} rounds, the fastest of {TURNS} turns in each; mask updates are left out."
)
Step = Callable[[int], object]  # on so many pictures


def contestant(what: Run, where: Where, device: torch.device = CPU) -> tuple[Step, int]:
    """A training step of that run on a batch of its own, and how many steps differ before it begins again."""
    with current(device):
        training = assemble(what, where, device, steps=1_000_000)  # it never comes to an end, nor to a rewind
        x, y = next(training.source.train.epoch(0))
    rho, end = training.optimizer.schedule, training.steps
    if rho is not None:  # as at its end: one that climbs late would be timed without its climb
        training.optimizer.schedule = lambda step, lr: rho(end, lr)

    def step(pictures: int) -> None:
        training.step(x[:pictures], y[:pictures])
        wait_for(device)

    return step, _period(training.optimizer)


def measure_speed(
    what: Run, versus: Run, book: Book, where: Where, tick: Tick = nobody, patience: float = PATIENCE
) -> None:
    """Let both take turns, and keep how fast they were in the folder of `what`."""
    with where.here() as device:
        _measure_speed(what, versus, book, where, device, tick, patience)


def _measure_speed(
    what: Run, versus: Run, book: Book, where: Where, device: torch.device, tick: Tick, patience: float
) -> None:
    (own, period), (reference, _) = contestant(what, where, device), contestant(versus, where, device)
    pictures = affordable(
        lambda few: sum(_turn(reference, own, few, time.perf_counter)),
        what.batch_size,
        patience / period / (1 + ROUNDS * TURNS),
    )
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    speeds: list[tuple[float, float]] = []
    for done in range(ROUNDS + 1):  # the first one warms up
        often = TURNS if done else 1
        turns = [[_turn(reference, own, pictures, clock) for _ in range(period)] for _ in range(often)]
        least = [sum(min(turn[place][side] for turn in turns) for place in range(period)) for side in (0, 1)]
        if done:
            speeds.append((pictures * period / least[0], pictures * period / least[1]))
        tick(done, ROUNDS)
    book.keep(
        what,
        SPEED,
        {
            "versus": versus.key,
            "how": _how(where),
            "pictures": pictures,
            "images_per_second": [mine for _, mine in speeds],
            "reference": [theirs for theirs, _ in speeds],
            "made_with": made_with() | about(device),
        },
    )


def measure_missing(runs: Mapping[Run, Run], book: Book, where: Where, say: Console) -> None:
    """Measure how fast the finished runs are beside others, where that was not done yet: one process at a time, for two
    that measure at once would slow each other down."""

    def is_done(run: Run) -> bool:
        return is_measured(run, runs[run], book, where)

    todo = [run for run in runs if book.holds(run) and not is_done(run)]
    with progress_bar(say, "rounds", hidden=not todo) as progress:

        def measure(run: Run) -> None:
            with alone_with(book.root / SPEED, wait=0.2):
                if is_done(run):
                    return
                measure_speed(run, runs[run], book, where, begin(progress, f"speed: {run.folder}"))

        work_through(todo, is_done, measure)


def speeds(what: Run, versus: Run | None, book: Book) -> tuple[dict[int, float], dict[int, float]]:
    """Images per second by round: of the run, and of what it took turns with; empty where that was not measured."""
    note = book.note(what, SPEED)
    if note is None or (versus is not None and note["versus"] != versus.key):
        return {}, {}
    return dict(enumerate(note["images_per_second"])), dict(enumerate(note["reference"]))


def is_measured(what: Run, versus: Run, book: Book, where: Where) -> bool:
    """Whether there is a note of the same two, measured in the same way."""
    note = book.note(what, SPEED)
    return note is not None and (note["versus"], note["how"]) == (versus.key, _how(where))


def ratio(what: Run, versus: Run, book: Book) -> float | None:
    """How many times as fast as the other, by the mean over rounds."""
    own, other = speeds(what, versus, book)
    return fmean(own[at] / other[at] for at in own) if own else None


def _how(where: Where) -> dict[str, Any]:
    """What changes how fast a step is."""
    threads = where.threads or torch.get_num_threads()
    kind = choose(where.device).type
    return {"device": kind, "threads": threads, "compile": where.compile, "accelerate": where.accelerate}


def _turn(reference: Step, own: Step, pictures: int, clock: Callable[[], float]) -> tuple[float, ...]:
    marks = [clock()]
    for step in (reference, own):
        step(pictures)
        marks.append(clock())
    return marks[1] - marks[0], marks[2] - marks[1]


def _period(optimizer: SharpnessAware) -> int:
    """LookSAM climbs every k steps, and ZO-SAM may keep a direction for some."""
    return int(getattr(optimizer, "k", getattr(optimizer, "every", 1)))
