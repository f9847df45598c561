"""SIGTERM and Ctrl-C: a notice inside a training, nobody's business outside of it."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import threading

import pytest
import torch

from zosam import files
from zosam.lab import checkpoints
from zosam.lab.preempt import Preempted, stoppable
from zosam.lab.run import Run, run

SMALL = Run(
    model="digits_net:width=4",
    epochs=2,
    method="set:every=4",
    batch_size=256,
    optimizer="looksam:k=3",
    diagnostics=True,
)
EPOCH = 6


@pytest.fixture
def handler():
    """A handler of the caller's own, and what it has seen."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    yield seen
    signal.signal(signal.SIGTERM, before)


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def asked_to_stop(then=lambda notice: None, patient=True):
    with stoppable() as notice:
        notice.patient = patient
        ask()
        then(notice)


def fails(error):
    raise error


def test_the_handler_is_there_only_inside(handler):
    mine = signal.getsignal(signal.SIGTERM)
    seen = []
    with pytest.raises(Preempted, match="after the end"):
        asked_to_stop(lambda notice: seen.append(notice.came))
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is mine
    assert handler == []
    ask()
    assert handler == [1]


def test_children_that_end_are_not_heard_of_while_it_stops(monkeypatch):
    monkeypatch.setattr("multiprocessing.active_children", list)  # whatever other tests have left
    heard, seen = [], []
    before = signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
    mine = signal.getsignal(signal.SIGCHLD)
    try:
        with pytest.raises(Preempted):
            asked_to_stop(lambda _: seen.append(signal.getsignal(signal.SIGCHLD)))
        assert seen == [signal.SIG_DFL]
        assert signal.getsignal(signal.SIGCHLD) is mine
    finally:
        signal.signal(signal.SIGCHLD, before)


def reading():
    """An iterator in the middle of its data."""
    batches = iter(torch.utils.data.DataLoader(range(64), num_workers=2, multiprocessing_context="fork"))
    next(batches)
    return batches


def end(worker):
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # and nobody has asked how it ended


@pytest.mark.parametrize("first", ["the reader", "the signal"])
def test_a_worker_that_ends_after_it_has_stopped_is_no_error(handler, first):
    kept = [reading()] if first == "the reader" else []
    with pytest.raises(Preempted):
        asked_to_stop(lambda _: kept.append(reading()))
    for worker in (w for batches in kept for w in batches._workers):
        end(worker)  # which the traceback of the stop may hold to the very end of the process
    other = reading()
    with pytest.raises(RuntimeError, match="is killed by signal"):  # while one of another training is
        end(other._workers[0])


def test_before_the_first_step_it_stops_at_once(handler):
    seen = []
    with pytest.raises(Preempted, match="begins again") as stop:
        asked_to_stop(seen.append, patient=False)
    assert seen == []
    assert stop.value.code == 75
    assert pickle.loads(pickle.dumps(stop.value)).code == 75


def test_an_error_that_the_signal_has_made_and_one_that_it_has_not(handler):
    with pytest.raises(Preempted, match=r"in the middle\. The same command goes on from the last checkpoint"):
        asked_to_stop(lambda _: fails(RuntimeError("a worker was killed")))
    with pytest.raises(files.NotWritten, match="full disk"):
        asked_to_stop(lambda _: fails(files.NotWritten("a full disk is told as such")))
    with pytest.raises(RuntimeError, match="by itself"), stoppable():
        raise RuntimeError("by itself")


def test_a_worker_that_gets_the_signal_before_us(handler):
    threading.Timer(0.2, ask).start()
    with pytest.raises(Preempted, match="in the middle"), stoppable():
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated. ")


def test_another_thread_leaves_signals_alone(handler):
    mine, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stoppable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [mine]


def figures(record):
    times = {"seconds", "cpu_seconds", "images_per_second"}
    return [{k: v for k, v in e.items() if k not in times} for e in record.epochs]


@pytest.mark.parametrize("what", [SMALL, dataclasses.replace(SMALL, method="lth:levels=2,rewind=2", optimizer="sgd")])
def test_stopped_after_any_step_it_goes_on_bit_for_bit(tmp_path, handler, what):
    whole = run(what, tmp_path / "whole")
    steps = whole.last["step"]
    stops = iter((1, 4, EPOCH, EPOCH + 2, steps))  # within an epoch, at its end, and after the last step
    while (at := next(stops, None)) is not None:
        with pytest.raises(Preempted, match=f"after step {at}"):
            run(what, tmp_path / "stopped", tick=lambda done, of, at=at: ask() if done == at else None)
        newest = checkpoints.of(tmp_path / "stopped" / what.folder)[-1]
        assert checkpoints.load(newest)["done"] == at
    resumed = run(what, tmp_path / "stopped")
    a, b = whole.load().state_dict(), resumed.load().state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert figures(whole) == figures(resumed)  # the sums of the epochs went through the checkpoints too
    assert handler == []


def test_ctrl_c_writes_a_checkpoint_as_sigterm_does(tmp_path):
    whole = run(SMALL, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match=r"Stopped by Ctrl-C after step 4\. The same command"):
        run(SMALL, tmp_path / "stopped", tick=lambda done, of: ask(signal.SIGINT) if done == 4 else None)
    assert checkpoints.load(checkpoints.of(tmp_path / "stopped" / SMALL.folder)[-1])["done"] == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert figures(whole) == figures(run(SMALL, tmp_path / "stopped"))


def test_who_does_not_want_to_wait_asks_twice():
    seen = []

    def impatient():
        with stoppable() as notice:
            notice.patient = True
            ask(signal.SIGINT)
            seen.append(notice.came)
            ask(signal.SIGINT)
            seen.append("it went on")

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert seen == [signal.SIGINT]


def test_ctrl_c_that_somebody_else_has_taken_is_theirs():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with stoppable() as notice:
            ask(signal.SIGINT)
        assert seen == [1]
        assert not notice.came
    finally:
        signal.signal(signal.SIGINT, before)


def test_stopped_between_two_batches_of_an_evaluation(tmp_path, handler, monkeypatch):
    whole = run(SMALL, tmp_path / "whole")
    from zosam.lab import train

    accuracy, calls = train.F.cross_entropy, []

    def counted(*arguments, **settings):
        calls.append(settings.get("reduction"))
        if calls.count("sum") == 1:
            ask()
        return accuracy(*arguments, **settings)

    monkeypatch.setattr(train.F, "cross_entropy", counted)
    with pytest.raises(Preempted, match=f"after step {EPOCH}"):
        run(SMALL, tmp_path / "stopped")
    monkeypatch.undo()
    assert figures(whole) == figures(run(SMALL, tmp_path / "stopped"))
