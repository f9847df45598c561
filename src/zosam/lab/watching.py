"""A training as people watch it: a bar with the latest figures in a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from zosam.lab.callbacks import Callbacks

NAMES = {  # figure: its name, and how it is written
    "epoch": ("epoch", "{:.4g}"), "train_loss": ("loss", "{:.4f}"), "test_accuracy": ("accuracy", "{:.2%}"),
    "validation_accuracy": ("validation accuracy", "{:.2%}"), "ema_test_accuracy": ("averaged", "{:.2%}"),
    "lr": ("lr", "{:.3g}"), "images_per_second": ("images/s", "{:,.0f}"), "sparsity": ("sparsity", "{:.2%}"),
}  # fmt: skip


def told(figures: Mapping[str, Any]) -> str:
    """The figures of an epoch, or of some steps, on one line."""
    shown = [(name, form.format(figures[key])) for key, (name, form) in NAMES.items() if key in figures]
    return "  ".join(f"{name} {value}" for name, value in shown)


class Watching(Progress):
    """Trainings, one after the other: use it as a context, and give `run` the callbacks of each."""

    def __init__(self, console: Console, many: int | None = None) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self.below = Text()
        self.is_lead = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts, one talks
        hidden = not (console.is_terminal and self.is_lead)
        super().__init__(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=hidden)
        self.runs = None if many is None else self.add_task("runs", total=many)
        self.steps = self.add_task("steps", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield self.below

    def has_finished(self, runs: int) -> None:
        """Say how many of many trainings are finished."""
        if self.runs is not None:
            self.update(self.runs, completed=runs)

    def callbacks(self, name: str) -> Callbacks:
        """What to call for the training called `name`."""
        self._say(name)
        self.reset(self.steps, total=None)
        known: dict[str, Any] = {}

        def tick(done: int, of: int) -> None:
            self.update(self.steps, completed=done, total=of)

        def tell(figures: dict[str, Any]) -> None:
            known.update(figures)
            self.below = Text(f"  {told(known)}")
            if self.disable:
                self._say(f"step {figures['step']:,}  {told(figures)}")

        def test(done: int, of: int) -> None:
            self.below = Text(f"  {told(known)}  testing {done}/{of}")

        return Callbacks(tick, tell, tell, test)

    def _say(self, text: str) -> None:
        if self.is_lead:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
