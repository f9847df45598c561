"""A busy machine does not make the kernels look slow."""

from __future__ import annotations

import pytest
import torch

from zosam.kernels import timing


class Machine:
    """A clock of our own: work takes CPU time, and other processes make it take longer."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def process_time(self) -> float:
        return self.cpu

    def perf_counter(self) -> float:
        return self.wall

    def work(self, seconds: float, waits: float = 0.0) -> None:
        self.cpu += seconds
        self.wall += seconds + waits


@pytest.mark.parametrize(("threads", "disturbed"), [(1, 100), (2, 2)])
def test_the_faster_one_is_found_on_a_busy_machine(
    threads: int, disturbed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, calls = Machine(), iter(range(100))
    monkeypatch.setattr(timing, "time", machine)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found = timing.ratio(
        lambda: machine.work(0.004), lambda: machine.work(0.001, waits=0.03 if next(calls) < disturbed else 0.0)
    )
    assert found == pytest.approx(4.0)
