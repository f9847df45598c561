"""What a table measures after its trainings is measured once, however many processes are at the table."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import time

import pytest
from rich.console import Console

from zosam.lab.paper import speed, value
from zosam.lab.paper.results_store import Book
from zosam.lab.run import Run
from zosam.lab.where import Where

RUNS = [dataclasses.replace(Run(epochs=1, method="snip"), seed=seed) for seed in range(3)]
NOTE = {"how": speed._how(Where()), "versus": RUNS[0].key, "images_per_second": [1.0], "reference": [1.0]}


def _measure(what, root, log):
    """In a process of its own: what is measured takes a while, and when it began and ended is written down."""
    book, say = Book.open(root), Console(quiet=True)

    def slowly(run, note, content):
        began = time.monotonic()
        time.sleep(0.3)
        book.keep(run, note, content)
        with log.open("a") as file:
            file.write(f"{run.seed} {began} {time.monotonic()}\n")

    if what == "corruptions":
        value.measure_corrupted = lambda record, *_: slowly(record.run, value.CORRUPTED, {"accuracy": {"fog": [0.5]}})
        value.measure_corruptions(RUNS, book, "paper", Where(), say)
    else:
        speed.measure_speed = lambda run, *_: slowly(run, speed.SPEED, NOTE)
        speed.measure_missing(dict.fromkeys(RUNS, RUNS[0]), book, Where(), say)
    assert all(book.note(run, value.CORRUPTED if what == "corruptions" else speed.SPEED) for run in RUNS)


@pytest.mark.parametrize("what", ["corruptions", "speed"])
def test_by_two_processes(what, tmp_path, shelve):
    for run in RUNS:
        shelve(tmp_path / "runs", run)
    fork, log = multiprocessing.get_context("fork"), tmp_path / "log"
    both = [fork.Process(target=_measure, args=(what, tmp_path / "runs", log)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
        assert one.exitcode == 0  # it stayed until all was there
    done = sorted([float(word) for word in line.split()] for line in log.read_text().splitlines())
    assert [seed for seed, _, _ in done] == [0, 1, 2]
    if what == "speed":  # one process at a time
        spans = sorted(span for _, *span in done)
        assert all(ended <= begins for (_, ended), (begins, _) in itertools.pairwise(spans))
