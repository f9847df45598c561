"""What a training says while it goes: lines of CSV always, TensorBoard and Weights & Biases if asked."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from zosam import files

if TYPE_CHECKING:
    from zosam.lab.run import Run

Figures = Mapping[str, Any]
Kind = Literal["steps", "epochs"]
COLUMNS = ("step", "epoch", "train_loss", "lr", "images_per_second", "seconds", "sparsity")


class Log(Protocol):
    """Somewhere to write the figures of a training. One that goes on after step `done` will write again what came
    after it, and a log is made knowing that step: no line is lost, and none is there twice."""

    def write(self, kind: Kind, figures: Figures) -> None:
        """Write what is known after the step `figures["step"]`, of the epoch so far or of a whole one."""

    def flush(self) -> None:
        """See to it that all of this outlives the process: a checkpoint is about to be written."""

    def close(self) -> None: ...


class StepLines:
    """steps.csv: a line every so many steps, with the means of the epoch so far. (Epochs are in epochs.csv.)"""

    def __init__(self, path: Path, what: Run, done: int) -> None:
        self.path = path / "steps.csv"
        kept = _lines_until(self.path, done) if done else []
        files.write(self.path, "".join([_text([COLUMNS]), *kept]).encode())
        self.file = self.path.open("a", encoding="utf-8", newline="")

    def write(self, kind: Kind, figures: Figures) -> None:
        if kind == "steps":
            self._safely(lambda: self.file.write(_text([[figures[name] for name in COLUMNS]])))

    def flush(self) -> None:
        self._safely(self.file.flush)
        self._safely(lambda: os.fsync(self.file.fileno()))

    def close(self) -> None:
        self._safely(self.file.close)

    def _safely(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            raise files.not_written(self.path, error) from error


class TensorBoard:
    """Event files in the folder `tensorboard` of the run, for `tensorboard --logdir runs`."""

    def __init__(self, path: Path, what: Run, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("log=tensorboard needs TensorBoard: pip install 'zosam[tensorboard]'") from None
        self.writer: Any = SummaryWriter(str(path / "tensorboard"), purge_step=done + 1)

    def write(self, kind: Kind, figures: Figures) -> None:
        for name, value in _numbers(figures).items():
            self.writer.add_scalar(f"{kind}/{name}", value, figures["step"])

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project `zosam` on Weights & Biases; where it goes is said by its own settings, such as WANDB_MODE.

    Lines that it has already are passed over there, so one that goes on is whole as well.
    """

    def __init__(self, path: Path, what: Run, done: int) -> None:
        try:
            import wandb
        except ImportError:
            raise ImportError("log=wandb needs Weights & Biases: pip install 'zosam[wandb]'") from None
        self.run: Any = wandb.init(
            project="zosam",
            id=what.key,
            name=what.folder,
            dir=str(path),
            config=what.description,
            resume="allow" if done else None,
        )

    def write(self, kind: Kind, figures: Figures) -> None:
        self.run.log({f"{kind}/{name}": value for name, value in _numbers(figures).items()}, step=figures["step"])

    def flush(self) -> None: ...  # it writes by itself

    def close(self) -> None:
        self.run.finish()


LOGS: dict[str, Callable[[Path, Run, int], Log]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


@contextmanager
def logs(names: Sequence[str], path: Path, what: Run, done: int) -> Iterator[list[Log]]:
    """steps.csv, and those that are asked for by name, of a training that goes on after step `done`."""
    with ExitStack() as opened:
        found: list[Log] = []
        for make in (StepLines, *(LOGS[name] for name in dict.fromkeys(names))):
            found.append(make(path, what, done))
            opened.callback(found[-1].close)
        yield found


def write_epochs(path: Path, epochs: Sequence[Figures]) -> None:
    """Write epochs.csv: a line for each epoch; what an epoch does not have is empty there."""
    columns = list(dict.fromkeys(name for epoch in epochs for name in epoch))
    files.write(path / "epochs.csv", _text([columns, *([e.get(c, "") for c in columns] for e in epochs)]).encode())


def _lines_until(file: Path, done: int) -> list[str]:
    """The whole lines of steps.csv that are not after step `done`."""
    try:
        lines = file.read_text("utf-8").splitlines(keepends=True)[1:]
    except (FileNotFoundError, UnicodeDecodeError):
        return []
    steps = [(line, line.partition(",")[0]) for line in lines if line.endswith("\n")]
    return [line for line, step in steps if step.isdecimal() and int(step) <= done]


def _text(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _numbers(figures: Figures) -> dict[str, float]:
    return {name: value for name, value in figures.items() if isinstance(value, (int, float)) and name != "step"}
