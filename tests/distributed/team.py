"""Processes that stay up for a whole test session: each test sends them a function, and all ranks run it."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import runpy
import sys
import tempfile
import time
import traceback
import types
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT = 240  # seconds; a hang is a failure


def load(file: str) -> Any:
    """A module of this folder, which need not be importable as pytest has it."""
    if "zosam_distributed" not in sys.modules:
        package = types.ModuleType("zosam_distributed")
        package.__path__ = [str(HERE)]
        sys.modules["zosam_distributed"] = package
    return importlib.import_module(f"zosam_distributed.{file}")


def work(rank: int, world: int, meeting: str, orders: Any) -> None:
    """Join the group, then run what comes until there is no more."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    gc.freeze()  # optimizers on ranks search all that is alive for their modules: not what was imported, then
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    while True:
        order = orders.recv()
        if order is None:
            break
        file, name, args = order
        try:
            orders.send((True, getattr(load(file), name)(*args)))
        except BaseException:
            orders.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Team:
    """`team(job, ...)` runs a function on all ranks, and gives what each of them has returned."""

    def __init__(self, world: int) -> None:
        self.world, self.processes = world, []

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        meeting = tempfile.mktemp(prefix="zosam-team-")
        pipes = [context.Pipe() for _ in range(self.world)]
        self.pipes = [mine for mine, _ in pipes]
        self.processes = [
            context.Process(
                target=runpy.run_path,
                args=(__file__, {"ORDERS": (rank, self.world, meeting, theirs)}, "worker"),
                daemon=True,
            )
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()

    def __call__(self, job: Any, *args: Any) -> list[Any]:
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send((Path(job.__code__.co_filename).stem, job.__name__, args))
        until, found = time.monotonic() + TIMEOUT, []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(max(0.0, until - time.monotonic())):
                self.stop()
                raise TimeoutError(f"rank {rank} hangs in {job.__name__}")
            try:
                found.append(pipe.recv())
            except EOFError:
                self.stop()  # the next job gets a new team
                raise AssertionError(f"rank {rank} died in {job.__name__}") from None
        failures = [f"rank {rank}: {what}" for rank, (fine, what) in enumerate(found) if not fine]
        if failures:
            self.stop()
            raise AssertionError("\n".join(failures))
        return [what for _, what in found]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.processes = []


if __name__ == "worker":
    work(*ORDERS)  # noqa: F821 (run_path puts it there)
