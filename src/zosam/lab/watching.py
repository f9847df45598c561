"""A training as people watch it: a bar with the latest figures in a terminal, plain lines everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from zosam.distributed.ranks import leads
from zosam.lab.callbacks import Callbacks

SAID: dict[str, Callable[[float], str]] = {  # a figure, and how it is said
    "epoch": "epoch {:.4g}".format,
    "train_loss": "loss {:.4f}".format,
    "test_accuracy": "accuracy {:.2%}".format,
    "validation_accuracy": "validation {:.2%}".format,
    "ema_test_accuracy": "averaged {:.2%}".format,
    "lr": "lr {:.2g}".format,
    "images_per_second": "{:,.0f} images/s".format,
    "sparsity": lambda share: f"{100 * share:.4g}% sparse",
}


def told(figures: Mapping[str, Any]) -> str:
    """The figures of an epoch, or of some steps, on one line."""
    return "  ".join(said(figures[name]) for name, said in SAID.items() if name in figures)


class Watching(Progress):
    """Trainings, one after the other: use it as a context, and give `run` the callbacks of each."""

    def __init__(self, console: Console, many: int | None = None) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self.below = Text()
        self.begun = False  # whether the training has begun: one that is finished never does
        hidden = not (console.is_terminal and leads())
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

    def callbacks(self, name: str, label: str = "") -> Callbacks:
        """What to call for the training called `name`; where a short `label` stands before the bar, that is enough."""
        if self.disable or not label:
            self._say(name)
        self.reset(self.steps, total=None, description=label or "steps")
        self.below = Text("preparing")
        self.begun = False
        known: dict[str, Any] = {}

        def tick(done: int, of: int) -> None:
            if done and not self.begun:
                self._say(f"goes on after step {done:,} of {of:,}")
            self.begun = True
            self.below = self.below if known else Text()
            self.update(self.steps, completed=done, total=of)

        def tell(figures: dict[str, Any]) -> None:
            known.update(figures)
            self.below = Text(told(known))
            if self.disable:
                self._say(f"step {figures['step']:,}  {told(figures)}")

        def test(done: int, of: int) -> None:
            self.below = Text(f"{told(known)}  testing {done}/{of}".lstrip())

        def kernels(gained: str) -> None:
            if self.disable or not label:
                self._say(f"sparse kernels: {gained}")

        return Callbacks(tick, tell, tell, test, kernels)

    def _say(self, text: str) -> None:
        if leads():
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
