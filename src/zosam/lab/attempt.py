"""One attempt at a run: from its last checkpoint, or from the beginning, to the end or to where it is stopped."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zosam.distributed.ranks import Ranks, current
from zosam.kernels import gained, in_use
from zosam.lab import checkpoints
from zosam.lab.assemble import Training, assemble, build_schedule
from zosam.lab.callbacks import Callbacks
from zosam.lab.checkpoints import Progress
from zosam.lab.device import about, random_state, seed
from zosam.lab.disk_space import check_room
from zosam.lab.locks import Held
from zosam.lab.logs import Figures, Kind, Log, logs
from zosam.lab.measure.variance import GradientVariance
from zosam.lab.preempt import Notice
from zosam.lab.record import Record, checksum, kernels_gained, write
from zosam.lab.train import evaluate, fit
from zosam.lab.where import Where
from zosam.random_stream import digest
from zosam.sparse.save import export, save_state

if TYPE_CHECKING:
    from zosam.lab.run import Run


def attempt(
    what: Run, path: Path, where: Where, device: torch.device, told: Callbacks, notice: Notice, lock: Held | None
) -> None:
    """Train to the end, or until the notice comes; what is finished is in the record."""
    team = current()
    had_kernels = (path / "kernels.json").exists()
    training = assemble(what, where, device, team, chosen=path / "kernels.json")
    same_kernels = had_kernels == (where.accelerate and training.sparse is not None)
    if where.accelerate and training.sparse is None:
        warnings.warn(f"accelerate has no effect: {what.method} makes no masks", stacklevel=3)
    if team.rank:  # dropout of its own
        seed(device, digest("rank", what.seed, team.rank))
    now = _restored(training, path, team, same_kernels)
    # two checkpoints stay; room for the next one and for the trained network
    team.lead(lambda: check_room(path, now.size(), max(1, 4 - len(checkpoints.of(path)))))
    with ExitStack() as opened:
        written: list[Log] = team.lead(lambda: opened.enter_context(logs(where.log, path, what, now.done))) or []
        Attempt(training, now, path, where, told, notice, lock, team, written).train()


def _restored(training: Training, path: Path, team: Ranks, same_kernels: bool) -> Progress:
    """How far the training has come: what the last checkpoint says is put back, and what cannot be is told."""
    device = training.device
    now = Progress(
        training.model,
        training.optimizer,
        training.sparse,
        training.steps,
        variance=GradientVariance(training.optimizer) if training.what.diagnostics else None,
        ema=training.ema,
        precision=training.precision,
        device=device,
    )
    state = checkpoints.load_latest(path)
    if state is not None:
        try:
            now.load(state | {"rng": _own_stream(state.get("rng"), team, device)})
        except ValueError as error:
            raise ValueError(f"{path}: {error}; move it away to train anew") from error
        if not same_kernels:
            warnings.warn("this training was begun with other kernels: it does not go on to the bit", stacklevel=4)
        if (began := state.get("device", "cpu")) != device.type:
            warnings.warn(f"this training was begun on {began}: on {device.type} not to the bit", stacklevel=4)
    if len(set(team.all_of([now.done], torch.device("cpu"), "checkpoint"))) > 1:
        raise ValueError(f"the ranks see different checkpoints: {path} must be one folder for all of them")
    return now


class Attempt:
    """A training that goes on: what is written and told after each step and each epoch, and where it may stop."""

    def __init__(
        self,
        training: Training,
        now: Progress,
        path: Path,
        where: Where,
        told: Callbacks,
        notice: Notice,
        lock: Held | None,
        team: Ranks,
        written: Sequence[Log],
    ) -> None:
        self.training, self.now, self.path, self.where, self.told = training, now, path, where, told
        self.notice, self.lock, self.team, self.written = notice, lock, team, written
        made = about(training.device) | {"kernels": in_use(training.model) or "none"}
        made |= {"compiled": True} if where.compile else {}
        self.record = Record(training.what, path, now.epochs, training.source.classes, made=made)
        self.saved = time.monotonic()

    def train(self) -> None:
        """From where it is to the end."""
        training, now, what = self.training, self.now, self.training.what
        listener = self.told.on_kernels
        if listener is not None and self.where.accelerate and now.sparse is not None:
            self.team.lead(lambda: listener(kernels_gained(self.path) or gained(training.model)))
        self.told.tick(now.done, now.steps)
        self.notice.patient = True
        if now.done == 0:
            self.keep_masks()
        for epoch in fit(
            training.network,
            training.optimizer,
            training.source.train,
            training.source.test,
            now.steps,
            start=now.done,
            sums=now.sums,
            schedule=build_schedule(what),
            place=training.schedule_step,
            label_smoothing=what.label_smoothing,
            precision=now.precision,
            test_every=self.where.test_every,
            tick=self.step_ended,
            pause=self.pause,
            on_test=self.told.on_test,
        ):
            self.epoch_ended(epoch)
        self.writes(self.write_results)

    def step_ended(self) -> None:
        now, ema, place = self.now, self.training.ema, self.training.schedule_step
        now.done += 1
        self.training.average()
        if ema is not None and place(now.done) <= place(now.done - 1):  # the weights are about to go back
            ema.restart()
        self.told.tick(now.done, now.steps)
        if self.where.log_every and now.done % self.where.log_every == 0:
            figures = _so_far(now, len(self.training.source.train))
            self.log("steps", figures)
            self.tell(self.told.on_steps, figures)

    def epoch_ended(self, epoch: dict[str, Any]) -> None:
        """Test what else there is to test, then write everything down."""
        now, training, tick = self.now, self.training, self.told.on_test
        if training.source.validation is not None:
            held = evaluate(training.model, training.source.validation, self.pause, self.team, tick)
            epoch |= {"validation_accuracy": held["test_accuracy"], "validation_loss": held["test_loss"]}
        if training.ema is not None:
            averaged = evaluate(training.ema.network, training.source.test, self.pause, self.team, tick)
            epoch |= {f"ema_{k}": v for k, v in averaged.items()}
        if now.variance is not None:
            epoch |= now.variance.take()
        self.keep_masks()
        now.epochs.append({**epoch, "sparsity": 0.0 if now.sparse is None else now.sparse.sparsity})
        now.sums.clear()
        self.log("epochs", now.epochs[-1])
        self.save()
        self.writes(lambda: write(self.record, "training"))
        self.tell(self.told.on_epoch, now.epochs[-1])

    def pause(self) -> None:
        """Where it may be stopped: write a checkpoint if it is, or if the last one is old."""
        late = time.monotonic() - self.saved > 60 * self.where.checkpoint_minutes
        stop, late = self.team.any(bool(self.notice.came), late)
        if stop or late:
            self.save()
        if stop:
            raise self.notice.stop(f"after step {self.now.done}. The same command goes on from there.")

    def save(self) -> None:
        """Write a checkpoint."""
        streams = self.team.gather(random_state(self.training.device), "checkpoint")

        def work() -> None:
            for each in self.written:  # what they hold until now must be there whenever the checkpoint is
                each.flush()
            state = self.now.state() | ({"rng": streams} if self.team.world > 1 else {})
            checkpoints.save(self.path, self.now.done, state)

        self.writes(work)
        self.saved = time.monotonic()

    def keep_masks(self) -> None:
        """For a film of them."""
        sparse = self.training.sparse
        if self.training.what.diagnostics and sparse is not None:
            self.writes(lambda: save_state(sparse, self.path / "masks" / f"{self.now.done:09d}.safetensors"))

    def write_results(self) -> None:
        """The trained network, its average and masks, and last the record that says it is finished."""
        training, path = self.training, self.path
        written = [export(training.model, path, "dense")]
        if training.ema is not None:
            written.append(path / "ema.safetensors")
            training.ema.save(written[-1])
        if training.sparse is not None:
            save_state(training.sparse, path / "sparse.safetensors")
            written.append(path / "sparse.safetensors")
        checksums = {file.name: checksum(file) for file in written}
        write(dataclasses.replace(self.record, checksums=checksums), "finished")

    def writes(self, work: Callable[[], object]) -> None:
        """Rank 0 writes, if the folder is still the one that it has locked."""

        def checked() -> None:
            if self.lock is not None:
                self.lock.check()
            work()

        self.team.lead(checked)

    def log(self, kind: Kind, figures: Figures) -> None:
        def work() -> None:
            for each in self.written:
                each.write(kind, figures)

        self.team.lead(work)

    def tell(self, listener: Callable[[dict[str, Any]], None] | None, figures: Figures) -> None:
        if listener is not None:
            self.team.lead(lambda: listener(dict(figures)))


def _so_far(now: Progress, epoch_length: int) -> Figures:
    """A line of steps.csv: the means of the epoch so far."""
    sums = now.sums.settled()
    return {
        "step": now.done,
        "epoch": round(now.done / epoch_length, 4),
        "train_loss": sums.loss / sums.seen,
        "lr": now.optimizer.param_groups[0]["lr"],
        "images_per_second": sums.seen / sums.seconds,
        "seconds": sums.seconds,
        "sparsity": 0.0 if now.sparse is None else now.sparse.sparsity,
    }


def _own_stream(saved: Any, team: Ranks, device: torch.device) -> Any:
    """This rank's random stream in a checkpoint, if as many ranks have written it; else that of now."""
    streams = saved if isinstance(saved, list) else [saved]
    if len(streams) == team.world:
        return streams[team.rank]
    warnings.warn(f"{len(streams)} processes began this training, {team.world} go on: not to the bit", stacklevel=3)
    return random_state(device)
