"""One attempt at a run: from its last checkpoint, or from the beginning, to the end or to where it is stopped."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zosam import files
from zosam.distributed.ddp import parallel
from zosam.distributed.ranks import Ranks, current
from zosam.kernels import accelerate, choices, in_use
from zosam.lab import checkpoints, models
from zosam.lab.assemble import build_method, build_optimizer, build_schedule, load_data
from zosam.lab.callbacks import Callbacks
from zosam.lab.checkpoints import Progress
from zosam.lab.clipping import clip_gradients
from zosam.lab.device import about, placed, random_state, seed
from zosam.lab.disk_space import check_room
from zosam.lab.ema import Ema
from zosam.lab.locks import Held
from zosam.lab.logs import Figures, Kind, Log, logs
from zosam.lab.measure.variance import GradientVariance
from zosam.lab.precision import Precision
from zosam.lab.preempt import Notice
from zosam.lab.record import Record, checksum, write
from zosam.lab.settings import Choice
from zosam.lab.train import Place, evaluate, fit
from zosam.lab.where import Where
from zosam.random_stream import digest
from zosam.sparse import Sparsity
from zosam.sparse.save import export, save_state

if TYPE_CHECKING:
    from zosam.lab.run import Run


def attempt(
    what: Run, path: Path, where: Where, device: torch.device, told: Callbacks, notice: Notice, lock: Held | None
) -> None:
    """Train to the end, or until the notice comes; what is finished is in the record."""
    with ExitStack() as opened:
        _attempt(what, path, where, device, told, notice, lock, opened)


def _attempt(
    what: Run,
    path: Path,
    where: Where,
    device: torch.device,
    told: Callbacks,
    notice: Notice,
    lock: Held | None,
    opened: ExitStack,
) -> None:
    seed(device, what.seed)
    team = current()
    source = load_data(what, where.data_dir, team, where.workers, device)
    model = placed(models.build(what.model, source.classes), device)
    network = parallel(model, next(source.train.epoch(0))[0])
    one_schedule = what.epochs * len(source.train)
    optimizer = build_optimizer(what, model, one_schedule)
    ema = None if what.ema is None else Ema(model, what.ema)
    sparse = build_method(what, model, optimizer, source, one_schedule)
    place: Place = (lambda step: step) if sparse is None else sparse.schedule_step
    if isinstance(what.rho, Choice):  # it goes back where the training does
        rho = optimizer.schedule
        assert rho is not None
        optimizer.schedule = lambda step, lr: rho(place(step), lr)
    if what.clip is not None:
        clip_gradients(optimizer, what.clip)
    if where.accelerate and what.precision != "fp32":
        raise ValueError(f"the sparse kernels compute in fp32, not in {what.precision}: leave accelerate out")
    same_kernels = (path / "kernels.json").exists() == (where.accelerate and sparse is not None)
    if where.accelerate and sparse is not None:
        _accelerate(model, sparse, next(source.train.epoch(0))[0], path / "kernels.json", team)
    if where.compile:
        network.compile()
    made = about(device) | {"kernels": in_use(model) or "none"} | ({"compiled": True} if where.compile else {})
    steps = one_schedule if sparse is None else sparse.total_steps(one_schedule)
    now = Progress(
        model,
        optimizer,
        sparse,
        steps,
        variance=GradientVariance(optimizer) if what.diagnostics else None,
        ema=ema,
        precision=Precision(what.precision, device),
        device=device,
    )
    if team.rank:  # dropout of its own
        seed(device, digest("rank", what.seed, team.rank))
    state = checkpoints.load_latest(path)
    if state is not None:
        try:
            now.load(state | {"rng": _own_stream(state.get("rng"), team, device)})
        except ValueError as error:
            raise ValueError(f"{path}: {error}; move it away to train anew") from error
        if not same_kernels:
            warnings.warn("this training was begun with other kernels: it does not go on to the bit", stacklevel=3)
        if (began := state.get("device", "cpu")) != device.type:
            warnings.warn(f"this training was begun on {began}: on {device.type} not to the bit", stacklevel=3)
        del state
    if len(set(team.all_of([now.done], torch.device("cpu"), "checkpoint"))) > 1:
        raise ValueError(f"the ranks see different checkpoints: {path} must be one folder for all of them")
    # two checkpoints stay; room for the next one and for the trained network
    team.lead(lambda: check_room(path, now.size(), max(1, 4 - len(checkpoints.of(path)))))
    record = Record(what, path, now.epochs, source.classes, made=made)
    written: list[Log] = team.lead(lambda: opened.enter_context(logs(where.log, path, what, now.done))) or []
    told.tick(now.done, steps)
    saved = time.monotonic()

    def one_more() -> None:
        now.done += 1
        if ema is not None:
            ema.update(model, None if sparse is None else sparse.masks)
            if place(now.done) <= place(now.done - 1):  # the weights are about to go back
                ema.restart()
        told.tick(now.done, steps)
        if where.log_every and now.done % where.log_every == 0:
            figures = _so_far(now, len(source.train))
            log("steps", figures)
            tell(told.on_steps, figures)

    def log(kind: Kind, figures: Figures) -> None:
        def work() -> None:
            for each in written:
                each.write(kind, figures)

        team.lead(work)

    def tell(listener: Callable[[dict[str, Any]], None] | None, figures: Figures) -> None:
        if listener is not None:
            team.lead(lambda: listener(dict(figures)))

    def writes(work: Callable[[], object]) -> None:
        """Rank 0 writes, if the folder is still the one that it has locked."""

        def checked() -> None:
            if lock is not None:
                lock.check()
            work()

        team.lead(checked)

    def save() -> None:
        nonlocal saved
        streams = team.gather(random_state(device), "checkpoint")

        def work() -> None:
            for each in written:  # what they hold until now must be there whenever the checkpoint is
                each.flush()
            checkpoints.save(path, now.done, now.state() | ({"rng": streams} if team.world > 1 else {}))

        writes(work)
        saved = time.monotonic()

    def pause() -> None:
        stop, late = team.any(bool(notice.came), time.monotonic() - saved > 60 * where.checkpoint_minutes)
        if stop or late:
            save()
        if stop:
            raise notice.stop(f"after step {now.done}. The same command goes on from there.")

    def keep_masks() -> None:
        if what.diagnostics and sparse is not None:
            writes(lambda: save_state(sparse, path / "masks" / f"{now.done:09d}.safetensors"))

    notice.patient = True
    if now.done == 0:
        keep_masks()
    for epoch in fit(
        network,
        optimizer,
        source.train,
        source.test,
        steps,
        start=now.done,
        sums=now.sums,
        schedule=build_schedule(what),
        place=place,
        label_smoothing=what.label_smoothing,
        precision=now.precision,
        tick=one_more,
        pause=pause,
        on_test=told.on_test,
    ):
        if source.validation is not None:
            held = evaluate(model, source.validation, pause, team, told.on_test)
            epoch |= {"validation_accuracy": held["test_accuracy"], "validation_loss": held["test_loss"]}
        if ema is not None:
            averaged = evaluate(ema.network, source.test, pause, team, told.on_test)
            epoch |= {f"ema_{k}": v for k, v in averaged.items()}
        if now.variance is not None:
            epoch |= now.variance.take()
        keep_masks()
        now.epochs.append({**epoch, "sparsity": 0.0 if sparse is None else sparse.sparsity})
        now.sums.clear()
        log("epochs", now.epochs[-1])
        save()
        writes(lambda: write(record, "training"))
        tell(told.on_epoch, now.epochs[-1])
    writes(lambda: _write_results(record, model, sparse, ema))


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


def _accelerate(model: nn.Module, sparse: Sparsity, example: Tensor, chosen: Path, team: Ranks) -> None:
    """Run on the sparse kernels; where they win is measured once and kept, or a resumed run could end in other bits."""

    def measure() -> None:
        if not chosen.exists():
            files.write_json(chosen, choices(accelerate(model, sparse, example)))

    team.lead(measure)
    accelerate(model, sparse, example, files.read_json(chosen))


def _write_results(record: Record, model: nn.Module, sparse: Sparsity | None, ema: Ema | None) -> None:
    written = [export(model, record.path, "dense")]
    if ema is not None:
        written.append(record.path / "ema.safetensors")
        ema.save(written[-1])
    if sparse is not None:
        save_state(sparse, record.path / "sparse.safetensors")
        written.append(record.path / "sparse.safetensors")
    write(
        dataclasses.replace(record, checksums={file.name: checksum(file) for file in written}),
        "finished",
    )


def _own_stream(saved: Any, team: Ranks, device: torch.device) -> Any:
    """This rank's random stream in a checkpoint, if as many ranks have written it; else that of now."""
    streams = saved if isinstance(saved, list) else [saved]
    if len(streams) == team.world:
        return streams[team.rank]
    warnings.warn(f"{len(streams)} processes began this training, {team.world} go on: not to the bit", stacklevel=3)
    return random_state(device)
