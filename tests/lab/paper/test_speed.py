"""Speeds in tables: from turns taken in one process, never from the records of trainings."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from zosam.lab.measure.throughput import affordable
from zosam.lab.paper import speed
from zosam.lab.paper.results_store import Book, line
from zosam.lab.paper.show import filled, show
from zosam.lab.paper.table import load
from zosam.lab.run import Run
from zosam.lab.where import Where

COLUMN = "ResNet-32 images/s"
TABLE = load("table4", "tiny")
SGD, SAM, DENSE = (TABLE.cell(row, COLUMN).run for row in ("SGD 90 %", "SAM", "SGD (dense)"))
NOTE = {"how": {}, "pictures": 64, "made_with": {}}


@pytest.fixture
def book(tmp_path, shelve):
    for what in (SGD, SAM, DENSE):
        for seed, rate in enumerate((50.0, 900.0, 2.0)):  # trainings beside other work: nonsense as speeds
            shelve(tmp_path, dataclasses.replace(what, seed=seed), images_per_second=rate)
    return Book.open(tmp_path)


def cells(book):
    content = filled(TABLE, book, 3, f"^(SAM|SGD|SGD 90 %|SGD .dense.) / {COLUMN}")
    place = TABLE.columns.index(COLUMN)
    return content, {row["name"]: row["cells"][place] for row in content["rows"]}


def test_what_trainings_say_of_their_speed_is_no_result(book):
    _, found = cells(book)
    assert found["SAM"]["ours"] == found["SGD 90 %"]["ours"] == ""
    assert found["SAM"]["verdict"] == "not run"


def test_a_table_shows_what_was_measured_in_turns_by_hand(book):
    book.keep(SGD, "speed", NOTE | {"versus": SGD.key, "images_per_second": [100, 110], "reference": [100, 110]})
    book.keep(SAM, "speed", NOTE | {"versus": SGD.key, "images_per_second": [45, 66], "reference": [90, 120]})
    content, found = cells(book)
    assert found["SGD 90 %"]["ours"].startswith("105.00 ± ")
    # 50 and 55 % of what it took turns with, though SGD's own note has other speeds: 12.706 · 3.5355 / √2 = 31.77
    assert found["SAM"]["difference"] == "52.50 ± 31.77 %"
    assert found["SAM"]["cost"] == ""
    page = io.StringIO()
    show(content, Console(file=page, width=100))
    assert "Images per second are not those of the trainings" in " ".join(page.getvalue().split())
    assert "52.50 ± 31.77 %" in page.getvalue()


def test_a_speed_beside_another_is_not_taken(book):
    book.keep(SAM, "speed", NOTE | {"versus": DENSE.key, "images_per_second": [45], "reference": [90]})
    assert cells(book)[1]["SAM"]["ours"] == ""
    assert not speed.is_measured(SAM, SGD, book, Where())


@pytest.mark.parametrize(
    "wrong", [{"images_per_second": [1, 2]}, {"reference": "fast"}, {"versus": 3}, {"reference": [0]}]
)
def test_a_note_that_cannot_be_right_is_refused(book, wrong):
    note = NOTE | {"versus": SGD.key, "images_per_second": [45], "reference": [90]} | wrong
    book.keep(SAM, "speed", note)
    with pytest.raises(ValueError, match=r"speed cannot be right: remove it from .*, and measure again"):
        cells(book)


def test_who_paces_whom():
    assert TABLE.pacemaker(TABLE.cell("SAM", COLUMN)) == SGD
    assert TABLE.pacemaker(TABLE.cell("SGD 90 %", COLUMN)) == SGD
    assert TABLE.pacemaker(TABLE.cell("SGD (dense)", COLUMN)) == SGD


def test_each_takes_turns_with_the_other(book, monkeypatch):
    """On a clock of its own: SGD's step takes 2, LookSAM's 6 and then 1, but for one moment of disturbance."""
    looksam = dataclasses.replace(SAM, optimizer="looksam:k=2")
    now, order, late = 0.0, [], iter([0] * 30 + [100] + [0] * 1000)

    def contestant(what, where, device):
        taken = 0

        def step(pictures):
            nonlocal now, taken
            now += 2 if what == SGD else (6, 1)[taken % 2] + next(late)
            taken += 1
            order.append(what.optimizer.name)

        return step, 1 if what == SGD else 2

    monkeypatch.setattr(speed, "contestant", contestant)
    monkeypatch.setattr(speed.time, "process_time", lambda: now)
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now)
    told = []
    monkeypatch.setattr(Book, "keep", lambda self, run, name, value: told.append(value))
    speed.measure_speed(looksam, SGD, book, Where(), patience=1e9)
    # turn about: 1 and 6 to see how long it takes, a period of 2 to warm up, then 5 rounds of 3 turns
    assert order == ["sgd", "looksam"] * (7 + 2 + 30)
    (note,) = told
    assert note["pictures"] == SAM.batch_size
    assert note["images_per_second"] == [2 * 64 / 7] * speed.ROUNDS
    assert note["reference"] == [2 * 64 / 4] * speed.ROUNDS


@pytest.mark.parametrize(("patience", "pictures"), [(1e9, 50), (80.0, 32), (0.1, 2)])
def test_a_slow_network_is_measured_on_fewer_pictures(patience, pictures):
    assert affordable(lambda few: 2.0 * few, 50, patience) == pictures  # 2 seconds for a picture: 64 of 80


def test_the_first_turn_of_all_may_be_slow():
    """A device that wakes up in it is still timed on whole batches."""
    turns = []
    assert affordable(lambda few: turns.append(few) or (0.001 * few if len(turns) > 1 else 30.0), 50, 6.0) == 50


def test_for_real_and_only_once(book, monkeypatch):
    monkeypatch.setattr(speed, "ROUNDS", 2)
    monkeypatch.setattr(speed, "TURNS", 1)
    say = Console(file=io.StringIO())
    speed.measure_missing({SAM: SGD, Run(optimizer="sam", seed=77): SGD}, book, Where(), say)  # the other is not there
    own, other = speed.speeds(SAM, SGD, book)
    assert len(own) == len(other) == 2
    assert 0 < speed.ratio(SAM, SGD, book) < 1.1  # it takes twice the passes
    assert not (book.root / Run(optimizer="sam", seed=77).folder).exists()
    monkeypatch.setattr(speed, "measure_speed", lambda *_: pytest.fail("it was measured already"))
    speed.measure_missing({SAM: SGD}, book, Where(), say)
    assert not speed.is_measured(SAM, SGD, book, Where(accelerate=True))  # that would be another speed
    told = json.loads(line(book.get(SAM), [speed.SPEED]))  # and it goes along into lines of results
    lines = book.root / "lines.jsonl"
    lines.write_text(json.dumps(told) + "\n")
    assert speed.speeds(SAM, SGD, Book.open("nowhere", [lines])) == (own, other)
