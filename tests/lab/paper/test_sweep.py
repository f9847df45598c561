"""Sweeps: nothing is trained twice, by one process or several; what was begun goes on; results come back from lines."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import sys
import threading
import time

import pytest

from zosam.lab.callbacks import Callbacks
from zosam.lab.cli import main
from zosam.lab.locks import locked
from zosam.lab.paper.cost import Costs
from zosam.lab.paper.results_store import Book, add_lines, line
from zosam.lab.paper.sweep import missing, part, seconds, sweep, with_seeds
from zosam.lab.run import Run, run
from zosam.lab.shelf import look
from zosam.lab.where import Where

SMALL = Run(model="digits_net:width=4", optimizer="sgd", method="random", epochs=1, batch_size=256)
RUNS = [dataclasses.replace(SMALL, sparsity=s) for s in (0.5, 0.8, 0.9)]


class Steps:
    """Counts the steps that are really taken, by run."""

    def __init__(self):
        self.taken = {}

    def __call__(self, run):
        def tick(done, of):
            self.taken.setdefault(run.key, set()).add(done)

        return Callbacks(tick)

    def trained(self):
        return {key for key, done in self.taken.items() if max(done) > min(done)}


def test_the_second_time_trains_nothing(tmp_path):
    book, steps = Book.open(tmp_path), Steps()
    assert missing(RUNS, book) == RUNS
    outcome = sweep(RUNS, book, watch=steps)
    assert outcome.trained == RUNS
    assert steps.trained() == {r.key for r in RUNS}
    again = Steps()
    assert sweep(RUNS, book, watch=again).trained == []
    assert not again.taken


def _worker(root, log):
    steps = Steps()
    sweep(RUNS, Book.open(root), watch=steps, wait=0.1)
    with open(log, "a") as file:
        file.writelines(f"{key}\n" for key in steps.trained())


def test_two_processes_share_the_work(tmp_path):
    fork = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    workers = [fork.Process(target=_worker, args=(tmp_path / "runs", log)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert sorted(log.read_text().split()) == sorted(r.key for r in RUNS)  # each by one of them
    assert not missing(RUNS, Book.open(tmp_path / "runs"))


def test_who_waits_for_another_does_not_say_that_it_begins(tmp_path):
    begun, taken = [], threading.Event()

    def hold():
        with locked(tmp_path / SMALL.folder):
            taken.set()
            time.sleep(0.5)

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    assert sweep([SMALL], Book.open(tmp_path), watch=lambda r: begun.append(r) or Callbacks(), wait=0.1).trained == [
        SMALL
    ]
    other.join()
    assert begun == [SMALL]


def test_a_killed_sweep_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    words = ["table", "1", "--tier", "tiny", "--seeds", "1", "--out", str(tmp_path), "--only", "^SNIP / CIFAR-10 9"]
    words += ["--change", "model=digits_net:width=4", "batch_size=256", "epochs=2"]
    monkeypatch.setattr(sys, "argv", ["zosam", *words])
    process = multiprocessing.get_context("fork").Process(target=main)
    process.start()
    while process.is_alive() and len(list(tmp_path.glob("*/record.json"))) < 2:
        time.sleep(0.01)
    process.kill()
    process.join()
    ended = [p for p in tmp_path.glob("*/record.json") if json.loads(p.read_text())["status"] == "finished"]
    before = {p: p.stat().st_mtime_ns for p in ended}
    assert before
    main()
    assert f"3 runs, {len(before)} finished, {3 - len(before)} missing" in capsys.readouterr().out
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())
    main()
    assert "0 missing" in capsys.readouterr().out


def test_a_run_that_fails_does_not_stop_the_others(tmp_path):
    broken = dataclasses.replace(SMALL, lr=1e30)
    outcome = sweep([broken, SMALL], Book.open(tmp_path))
    assert outcome.trained == [SMALL]
    assert "FloatingPointError" in outcome.failed[broken]


def test_a_folder_that_cannot_be_written_does_not_stop_the_others(tmp_path):
    (tmp_path / RUNS[0].folder).write_text("a file is in the way")
    outcome = sweep(RUNS, Book.open(tmp_path))
    assert outcome.trained == RUNS[1:]
    assert "could not be written" in outcome.failed[RUNS[0]]


def test_nor_does_one_that_nobody_may_look_into(tmp_path, monkeypatch):
    """Another user's, in a folder that several share."""
    folder, stat = str(tmp_path / RUNS[0].folder), os.stat

    def refused(path, *args, **settings):
        if str(path).startswith(f"{folder}{os.sep}"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **settings)

    os.mkdir(folder)
    monkeypatch.setattr(os, "stat", refused)
    outcome = sweep(RUNS, Book.open(tmp_path))
    assert outcome.trained == RUNS[1:]
    assert "Permission denied" in outcome.failed[RUNS[0]]
    assert [(run.status, run.why) for run in look(tmp_path)].count(("finished", "")) == 2
    (closed,) = [run for run in look(tmp_path) if run.status == "damaged"]
    assert closed.path == tmp_path / RUNS[0].folder
    assert "Permission denied" in closed.why


def test_the_budget_holds(tmp_path):
    book = Book.open(tmp_path)
    outcome = sweep(RUNS, book, budget=1e-9)
    assert outcome.left == RUNS
    assert not any(tmp_path.iterdir())


def test_costs_come_from_finished_seeds_and_else_from_a_probe(tmp_path):
    book = Book.open(tmp_path)
    guess = Costs(book).seconds(SMALL)
    assert guess > 0
    twice = Costs(book)
    assert twice.seconds(dataclasses.replace(SMALL, epochs=2)) == pytest.approx(2 * twice.seconds(SMALL))
    sam = dataclasses.replace(SMALL, optimizer="sam")  # two forwards and two backwards against one of each
    assert twice.seconds(sam) == pytest.approx(2 * twice.seconds(SMALL))
    sweep([SMALL], book)
    spent = sum(e["seconds"] for e in book.get(SMALL).epochs)
    costs = Costs(book)
    assert costs.seconds(dataclasses.replace(SMALL, seed=1)) == pytest.approx(spent)
    assert costs.seconds(dataclasses.replace(sam, weight_decay=0.0)) == pytest.approx(2 * spent)  # its like tells
    assert not costs.prices
    cpu = sum(e["cpu_seconds"] for e in book.get(SMALL).epochs)
    assert Costs(book, by="cpu_seconds").seconds(sam) == pytest.approx(2 * cpu)
    assert Costs(book, Where(accelerate=True)).seconds(dataclasses.replace(SMALL, sparsity=0.5)) > 0


def test_shards_are_a_partition():
    runs = with_seeds(RUNS, 5)
    parts = [part(runs, f"{i}/3") for i in range(3)]
    assert sorted(r.key for p in parts for r in p) == sorted(r.key for r in runs)
    assert all(len(p) < len(runs) for p in parts)
    for wrong in ("3/3", "1", "a/b"):
        with pytest.raises(ValueError, match="a shard is"):
            part(runs, wrong)


def test_seeds_go_first_by_cell():
    assert [(r.sparsity, r.seed) for r in with_seeds([*RUNS, RUNS[0]], 2)] == [
        (0.5, 0), (0.8, 0), (0.9, 0), (0.5, 1), (0.8, 1), (0.9, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("table 1 --cpus 2", "--cpus"),
        ("table 1 --gpus 1", "--gpus"),
        ("table 1 --ray --budget 1h", "--budget"),
        ("table 1 --no-train --budget 1h", "--budget"),
        ("table 1 --no-train --shard 0/2", "--shard"),
        ("table 1 --no-train --ray", "--ray"),
        ("table 1 --dry-run --save lines.jsonl", "--save"),
        ("figure budget-90 --no-train --budget 1h", "--budget"),
        ("evidence control --no-train --budget 1h", "--budget"),
        ("evidence control --cost", "--cost"),
    ],
)
def test_options_without_effect_are_refused(words, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zosam", *words.split()])
    with pytest.raises(SystemExit):
        main()
    assert f"{option} would have no effect" in "".join(capsys.readouterr())
    assert not any(tmp_path.iterdir())


def test_lines_bring_results_back(tmp_path):
    book = Book.open(tmp_path / "runs")
    sweep([SMALL], book)
    book.keep(SMALL, "corrupted", {"accuracy": {"fog": [0.5]}})
    file = tmp_path / "results.jsonl"
    file.write_text(line(book.get(SMALL), notes=["corrupted"]) + "\n")
    other = Book.open(tmp_path / "elsewhere", [file])
    assert other.get(SMALL).last == book.get(SMALL).last
    assert other.note(SMALL, "corrupted") == {"accuracy": {"fog": [0.5]}}
    plain = tmp_path / "plain.jsonl"
    plain.write_text(line(book.get(SMALL)) + "\n")  # of the same run: it takes nothing away
    assert Book.open(tmp_path / "elsewhere", [file, plain]).note(SMALL, "corrupted") == {"accuracy": {"fog": [0.5]}}
    assert other.get(RUNS[0]) is None
    assert {"torch", "cpu", "zosam"} <= json.loads(file.read_text())["made_with"].keys()
    file.write_text('{"run": {"model": "nothing"}}\n')
    with pytest.raises(ValueError, match=r"results.jsonl, line 1"):
        Book.open(tmp_path, [file])


def test_the_record_of_another_run_is_not_taken_for_it(tmp_path):
    book = Book.open(tmp_path)
    sweep([SMALL], book)
    other = dataclasses.replace(SMALL, lr=0.2)
    (tmp_path / SMALL.folder).rename(tmp_path / other.folder)  # as a careless copy would
    assert book.get(other) is None
    with pytest.raises(ValueError, match="written by another configuration"):
        run(other, tmp_path)


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    book = Book.open(tmp_path_factory.mktemp("runs"))
    sweep([SMALL], book)
    return json.loads(line(book.get(SMALL)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "0" * 12}, "its key is of another run"),
        ({"epochs": []}, "epochs"),
        ({"epochs": [{"test_accuracy": 1.0}]}, "epochs"),
        ({"epochs": [{}] * 3}, "epochs"),
        ({"classes": "ten"}, "classes"),
        ({"classes": 1 << 40}, "classes"),
        ({"made_with": None}, "made_with"),
        ({"run": None}, "describes no run"),
        ({"corrupted": 3}, "corrupted"),
        ({"corrupted": {"accuracy": "high"}}, "corrupted"),
        ({"corrupted": {"accuracy": {"fog": [0.5, "x"]}}}, "corrupted"),
        ({"corrupted": {"accuracy": {"fog": [0.5] * 6}}}, "corrupted"),
        ({"corrupted": {"accuracy": {"fog": [0.5]}, "pictures": []}}, "corrupted"),
        ({"speed": {"images_per_second": [1.0]}}, "speed"),
        ({"trial": []}, "trial"),
        ({"idle": "yes"}, "idle"),
    ],
)
def test_result_lines_are_checked_when_they_are_read(tmp_path, entry, change, message):
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps(entry) + "\n")
    assert Book.open(tmp_path, [file]).get(SMALL).last == entry["epochs"][-1]
    file.write_text(json.dumps(entry | change) + "\n")
    with pytest.raises(ValueError, match=rf"results\.jsonl, line 1 is no record of a run \(.*{message}"):
        Book.open(tmp_path, [file])


def test_so_are_the_notes_in_a_folder(tmp_path):
    book = Book.open(tmp_path)
    sweep([SMALL], book)
    (tmp_path / SMALL.folder / "corrupted.json").write_text('{"accuracy": ["fog"]}')
    for read in (lambda: book.note(SMALL, "corrupted"), lambda: line(book.get(SMALL), ["corrupted"]), book.entries):
        with pytest.raises(ValueError, match=rf"corrupted cannot be right: .*{SMALL.folder}, and measure"):
            read()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"{", b"[" * 100_000, b"null", b"3", b'{"run": ' + b"9" * 5000 + b"}"]
)
def test_a_file_that_holds_no_results(tmp_path, content):
    file = tmp_path / "results.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"results\.jsonl"):
        Book.open(tmp_path, [file])


def _save(path, keys, entry):
    for key in keys:
        add_lines(path, {key: json.dumps(entry | {"key": key})})


def test_several_processes_save_into_one_file_and_lose_no_line(tmp_path, entry):
    fork, path = multiprocessing.get_context("fork"), tmp_path / "results.jsonl"
    keys = [[f"{worker}-{n}" for n in range(8)] for worker in range(5)]
    workers = [fork.Process(target=_save, args=(path, each, entry)) for each in keys]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    found = [json.loads(text)["key"] for text in path.read_text().splitlines()]
    assert sorted(found) == sorted(key for each in keys for key in each)
    assert add_lines(path, {"0-0": "{}", "new": "{}"}) == 41
    assert path.read_text().splitlines()[found.index("0-0")] == "{}"  # in its old place


@pytest.mark.parametrize(("text", "found"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("45", 45)])
def test_lengths_of_time(text, found):
    assert seconds(text) == found


@pytest.mark.parametrize("text", ["", "soon", "-3m", "2 days"])
def test_what_is_no_length_of_time(text):
    with pytest.raises(ValueError, match="a budget is a time"):
        seconds(text)
