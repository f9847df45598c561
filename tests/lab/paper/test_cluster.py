"""A sweep on a Ray cluster of this machine: the same records as one by one, also when a worker is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from zosam.lab.paper.cluster import on_ray
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.sweep import missing, sweep, with_seeds
from zosam.lab.paper.table import load
from zosam.lab.run import Run

pytest.importorskip("ray", reason="pip install 'zosam[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def results(book, runs):
    """All that a record says but for times."""
    timed = {"seconds", "cpu_seconds", "images_per_second"}
    return {r.key: [{k: v for k, v in e.items() if k not in timed} for e in book.get(r).epochs] for r in runs}


def test_the_cluster_gives_the_same_records(tmp_path):
    cells = [c.run for c in load("table1", "tiny").cells if c.row in {"SNIP", "SNIP + ZO-SAM"} and "10 9" in c.column]
    runs = with_seeds(cells, 1)
    serial, cluster, heard = Book.open(tmp_path / "serial"), Book.open(tmp_path / "cluster"), []
    sweep(runs, serial)
    outcome = on_ray(runs, cluster, told=lambda done, of: heard.append((done, of)))
    assert not outcome.failed
    assert {r.key for r in outcome.trained} == {r.key for r in runs}
    assert results(cluster, runs) == results(serial, runs)
    assert heard[0] == (0, len(runs))
    assert heard[-1] == (len(runs), len(runs))
    assert not on_ray(runs, cluster).trained  # nothing is left to do


def _kill_one_trial(root: Path, killed: list[int]) -> None:
    """Kill a worker in the middle of its training, as soon as one has written a checkpoint."""
    while not killed:
        time.sleep(0.02)
        if not list(root.glob("*/checkpoint-*.pt")):
            continue
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if b"ray::_trial" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed.append(int(process.name))
                    break
            except (FileNotFoundError, ProcessLookupError):
                continue


def test_a_killed_worker_goes_on(tmp_path):
    run = Run(method="set:every=5", optimizer="zosam", epochs=40, batch_size=128)
    serial, cluster, killed = Book.open(tmp_path / "serial"), Book.open(tmp_path / "cluster"), []
    threading.Thread(target=_kill_one_trial, args=(tmp_path / "cluster", killed), daemon=True).start()
    outcome = on_ray([run], cluster)
    assert killed
    assert outcome.trained == [run]
    sweep([run], serial)
    assert results(cluster, [run]) == results(serial, [run])


def test_a_trial_that_fails_is_told_and_the_others_go_on(tmp_path):
    good = Run(method="random", optimizer="sgd", epochs=1, batch_size=256)
    bad = dataclasses.replace(good, lr=1e30)
    outcome = on_ray([bad, good], Book.open(tmp_path))
    assert outcome.trained == [good]
    assert "not taken" in outcome.failed[bad]
    assert missing([bad, good], Book.open(tmp_path)) == [bad]
