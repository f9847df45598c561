"""One training, described by a `Run`; its address is the hash of the description, so it is never done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
from torch import Tensor, nn

import zosam
from zosam import files
from zosam.distributed.ddp import parallel
from zosam.distributed.ranks import ALONE, Ranks, current, joined
from zosam.kernels import accelerate, choices
from zosam.lab import data, models
from zosam.lab.checkpoints import Progress
from zosam.lab.disk_space import check_room
from zosam.lab.measure.variance import GradientVariance
from zosam.lab.preempt import Notice, Preempted, sigterm
from zosam.lab.record import check_files, check_size, checksum, read_record, write_record
from zosam.lab.train import classification, evaluate, fit
from zosam.machine import cpu_name
from zosam.names import canonical, check_settings, find, parse, settings_of
from zosam.optim import OPTIMIZERS, SharpnessAware
from zosam.random_stream import stream
from zosam.sparse import METHODS, Sparsity
from zosam.sparse.export import export
from zosam.sparse.save import read_tensors, save_state, saved_masks

OWN_ARGUMENTS = {"self", "base", "rho", "seed", "model", "optimizer", "sparsity", "loss"}


@dataclass(frozen=True)
class Run:
    """What to train and how. A default never changes: it is part of the address of every run that leaves it out."""

    model: str = "digits_net"
    """Network: a name that `zosam list` shows, or module:function of your own."""
    data: str = "digits"
    """Data set: a name that `zosam list` shows."""
    method: str = "rigl"
    """Sparse method with settings, such as rigl or set:every=50,drop_fraction=0.5; dense for none."""
    sparsity: float = 0.9
    """Share of weights that are zero."""
    optimizer: str = "zosam"
    """Optimizer with settings, such as sgd, sam, zosam or zosam:directions=2."""
    rho: float = 0.05
    """Length of the perturbation."""
    base: Literal["sgd", "adamw"] = "sgd"
    """What takes the step."""
    epochs: int = 15
    """Passes over the training data."""
    batch_size: int = 64
    """Pictures in a step."""
    lr: float = 0.1
    """Learning rate at the start."""
    momentum: float = 0.9
    """Momentum of sgd; first beta of adamw."""
    weight_decay: float = 5e-4
    """Weight decay, on all parameters."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate goes, step by step: half a cosine to zero, or not at all."""
    label_smoothing: float = 0.0
    """Share of the label given to all classes alike."""
    accelerate: bool = False
    """Run sparse layers on the sparse CPU kernels where they measure faster; last bits may differ from without."""
    diagnostics: bool = False
    """Record, for each epoch, length of the perturbation, its cosine with the gradient, losses of probes, variance of
    the gradient, and the masks."""
    seed: int = 0
    """Seed of initialization, data order, masks and directions."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # equal runs must have equal addresses, however they are written
            value = getattr(self, field.name)
            _check_kind(field.name, value, field.default)
            if isinstance(field.default, float):
                object.__setattr__(self, field.name, float(value))
            elif field.name in {"method", "optimizer", "data"} or (field.name == "model" and "=" in value):
                object.__setattr__(self, field.name, canonical(value))
        if self.method == "dense":
            object.__setattr__(self, "sparsity", 0.0)
        for name in ("base", "schedule"):
            find({n: n for n in get_args(get_type_hints(type(self))[name])}, getattr(self, name), name)
        self._check("optimizer", dict(OPTIMIZERS))
        self._check("method", {**METHODS, "dense": None})
        if ":" not in self.model:
            find(models.MODELS, self.model, "model")
        name, settings = parse(self.data)
        check_settings(find(data.DATA, name, "data set"), settings, name, taken={"batch_size", "seed", "data_dir"})
        for name, low in (("epochs", 1), ("batch_size", 1), ("lr", 0), ("rho", 0), ("weight_decay", 0)):
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} must be {low} or more, not {getattr(self, name)}")
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity must be at least 0 and below 1, not {self.sparsity}")

    def _check(self, field: str, table: dict[str, Any]) -> None:
        name, settings = parse(getattr(self, field))
        cls = find(table, name, field)
        if cls is None and settings:
            raise ValueError(f"{name} takes no settings")
        if cls is not None:
            check_settings(cls, settings, name, taken=OWN_ARGUMENTS)

    def changed(self) -> dict[str, Any]:
        """The fields that are not at their default: what the address is made of."""
        return {f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) != f.default}

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.changed(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The name of the run's folder: what it is, for people, and the key."""
        method, optimizer = parse(self.method)[0], parse(self.optimizer)[0]
        sparsity = f"{100 * self.sparsity:g}" if self.sparsity else ""
        return f"{self.data}-{method}{sparsity}-{optimizer}-{self.key}".replace("/", "_").replace(":", "_")


def _check_kind(name: str, value: Any, default: Any) -> None:
    """Fields also come out of files: each must be of the kind of its default."""
    kinds = {bool: (bool, "true or false"), int: (int, "a whole number"), float: (Real, "a number"), str: (str, "text")}
    kind, words = kinds[type(default)]
    absurd = isinstance(value, (int, float)) and abs(value) > 1e300
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or absurd:
        raise ValueError(f"{name} must be {words}, not {value!r:.100}")


@dataclass(frozen=True)
class Record:
    """What a finished run has to say."""

    run: Run
    path: Path
    epochs: list[dict[str, Any]]
    classes: int
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)
    """SHA-256 of the files that the run has written."""

    @property
    def last(self) -> dict[str, Any]:
        return self.epochs[-1]

    def load(self, model: nn.Module | None = None) -> nn.Module:
        """The trained network; one whose code is not ours is not imported because a record says so: pass it."""
        check_files(self.path, {k: v for k, v in self.checksums.items() if k == "model.safetensors"})
        tensors = read_tensors(self.path / "model.safetensors")[0]
        if model is None:
            check_size(self.run.model, self.classes, tensors)
            with torch.random.fork_rng():
                model = models.build(self.run.model, self.classes)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{self.path / 'model.safetensors'} holds another network: {error}") from None
        return model

    def masks(self) -> dict[str, Tensor]:
        """The masks it ended with, by the name of the weight."""
        file = self.path / "sparse.safetensors"
        return saved_masks(file) if file.exists() else {}


def run(
    what: Run,
    root: str | Path = "runs",
    *,
    data_dir: str | None = None,
    tick: Callable[[int, int], None] | None = None,
    checkpoint_minutes: float = 10.0,
) -> Record:
    """Train `what` in its folder under `root`: from its last checkpoint if there is one, not at all if it is done.

    `tick` is told after every step how many of how many are done. The caller's random streams are left alone.
    A checkpoint is written after every epoch, every `checkpoint_minutes` within a long one, and on SIGTERM, which
    then raises `Preempted`.

    Under torchrun, or where `torch.distributed` is up, all ranks call it and train together, each on its part of
    every batch: the training is that of one process, up to rounding. Rank 0 alone writes.
    """
    path = Path(root) / what.folder
    done = _finished(path, what)  # to look at it takes no lock, and no right to write
    if done is not None:
        return done
    with joined() as team, ExitStack() as held, torch.random.fork_rng(), sigterm() as notice:
        team.lead(lambda: held.enter_context(files.locked(path)))
        team.lead(lambda: _claim(path, what))
        done = _finished(path, what)
        return done or _train(what, path, data_dir, tick or (lambda step, steps: None), notice, 60 * checkpoint_minutes)


def finished(path: Path) -> Record:
    """The record of a run that has ended, by its folder."""
    try:
        content = read_record(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is not the folder of a run, or has no finished epoch yet") from None
    if content["status"] != "finished":
        raise ValueError(f"{path} is not finished: train it to the end first")
    try:
        what = Run(**content["run"])
    except TypeError as error:
        raise ValueError(f"{path / 'record.json'} describes no run ({error})") from None
    return Record(what, path, content["epochs"], content["classes"], content.get("checksums", {}))


def _train(
    what: Run, path: Path, data_dir: str | None, tick: Callable[[int, int], None], notice: Notice, seconds: float
) -> Record:
    torch.manual_seed(what.seed)
    team = current()
    source = load_data(what, data_dir, team)
    model = models.build(what.model, source.classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    network = parallel(model, next(source.train.epoch(0))[0])
    optimizer = build_optimizer(what, model)
    one_schedule = what.epochs * len(source.train)
    sparse = build_method(what, model, optimizer, source, one_schedule)
    if what.accelerate and sparse is not None:
        _accelerate(model, sparse, next(source.train.epoch(0))[0], path / "kernels.json", team)
    steps = one_schedule if sparse is None else sparse.total_steps(one_schedule)
    now = Progress(model, optimizer, sparse, steps, variance=GradientVariance(optimizer) if what.diagnostics else None)
    if team.rank:  # dropout of its own
        torch.set_rng_state(stream(torch.device("cpu"), "rank", what.seed, team.rank).get_state())
    state = files.load_latest(path)
    if state is not None:
        try:
            now.load(state | {"rng": _own_stream(state.get("rng"), team)})
        except ValueError as error:
            raise ValueError(f"{path}: {error}; move it away to train anew") from error
        del state
    if len(set(team.all_of([now.done], torch.device("cpu"), "checkpoint"))) > 1:
        raise ValueError(f"the ranks see different checkpoints: {path} must be one folder for all of them")
    # two checkpoints stay; room for the next one and for the trained network
    team.lead(lambda: check_room(path, now.size(), max(1, 4 - len(files.checkpoints(path)))))
    record = Record(what, path, now.epochs, source.classes)
    tick(now.done, steps)
    saved = time.monotonic()

    def one_more() -> None:
        now.done += 1
        tick(now.done, steps)

    def save() -> None:
        nonlocal saved
        streams = team.gather(torch.get_rng_state(), "checkpoint")
        team.lead(lambda: files.save(path, now.done, now.state() | ({"rng": streams} if team.world > 1 else {})))
        saved = time.monotonic()

    def pause() -> None:
        stop, late = team.any(notice.came, time.monotonic() - saved > seconds)
        if stop or late:
            save()
        if stop:
            raise Preempted(f"Stopped by SIGTERM after step {now.done}. The same command goes on from there.")

    notice.patient = True
    for epoch in fit(
        network,
        optimizer,
        source.train,
        source.test,
        steps,
        start=now.done,
        sums=now.sums,
        schedule=lambda at: learning_rate(what.schedule, at / one_schedule),
        place=(lambda step: step) if sparse is None else sparse.schedule_step,
        label_smoothing=what.label_smoothing,
        tick=one_more,
        pause=pause,
    ):
        if source.validation is not None:
            held = evaluate(model, source.validation, pause, team)
            epoch |= {"validation_accuracy": held["test_accuracy"], "validation_loss": held["test_loss"]}
        if now.variance is not None:
            epoch |= now.variance.take()
        if what.diagnostics and sparse is not None:
            team.lead(lambda: save_state(sparse, path / "masks" / f"{now.done:09d}.safetensors"))
        now.epochs.append({**epoch, "sparsity": 0.0 if sparse is None else sparse.sparsity})
        now.sums.clear()
        save()
        team.lead(lambda: _write_record(record, "training"))
    team.lead(lambda: _write_results(record, model, sparse))
    return finished(path)


def _accelerate(model: nn.Module, sparse: Sparsity, example: Tensor, chosen: Path, team: Ranks) -> None:
    """Run on the sparse kernels; where they win is measured once and kept, or a resumed run could end in other bits."""

    def measure() -> None:
        if not chosen.exists():
            files.write_json(chosen, choices(accelerate(model, sparse, example)))

    team.lead(measure)
    accelerate(model, sparse, example, files.read_json(chosen))


def _write_results(record: Record, model: nn.Module, sparse: Sparsity | None) -> None:
    written = [export(model, record.path, "dense")]
    if sparse is not None:
        save_state(sparse, record.path / "sparse.safetensors")
        written.append(record.path / "sparse.safetensors")
    _write_record(dataclasses.replace(record, checksums={file.name: checksum(file) for file in written}), "finished")


def _own_stream(saved: Any, team: Ranks) -> Any:
    """This rank's random stream in a checkpoint, if as many ranks have written it; else that of now."""
    streams = saved if isinstance(saved, list) else [saved]
    if len(streams) == team.world:
        return streams[team.rank]
    warnings.warn(f"{len(streams)} processes began this training, {team.world} go on: not to the bit", stacklevel=3)
    return torch.get_rng_state()


def load_data(what: Run, data_dir: str | None = None, team: Ranks = ALONE) -> data.Data:
    """The data set of a run, or the part of each of its batches that this rank of `team` sees."""
    share, left = divmod(what.batch_size, team.world)
    if left:
        raise ValueError(f"batch_size is {what.batch_size}: {team.world} processes cannot share it equally")
    return data.load(what.data, share, what.seed, data_dir=data_dir, rank=team.rank, world=team.world)


def build_optimizer(what: Run, model: nn.Module) -> SharpnessAware:
    if what.base == "sgd":
        base: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=what.lr, momentum=what.momentum, weight_decay=what.weight_decay
        )
    else:
        betas = (what.momentum, 0.999)
        base = torch.optim.AdamW(model.parameters(), lr=what.lr, betas=betas, weight_decay=what.weight_decay)
    name, settings = parse(what.optimizer)
    optimizer = find(OPTIMIZERS, name, "optimizer")(base, rho=what.rho, seed=what.seed, **settings)
    optimizer.diagnostics = {} if what.diagnostics else None
    return optimizer


def build_method(
    what: Run, model: nn.Module, optimizer: SharpnessAware, source: data.Data, steps: int
) -> Sparsity | None:
    """The sparse method; what it must know of the training, where it asks, is filled in."""
    if what.method == "dense":
        return None
    name, settings = parse(what.method)
    cls = find(METHODS, name, "sparse method")
    known = settings_of(cls)
    x, y = next(source.train.epoch(0))
    filled: dict[str, Any] = {
        "loss": classification(model, x, y),
        "until": int(getattr(cls, "until_share", 0.75) * steps),
        "period": steps,
        "seed": what.seed,
    }
    settings = {k: v for k, v in filled.items() if k in known} | settings
    return cls(model, optimizer, what.sparsity, **settings)


def learning_rate(schedule: str, progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2 if schedule == "cosine" else 1.0


def _claim(path: Path, what: Run) -> None:
    """Say whose folder this is; one that another configuration wrote is refused."""
    note = path / "run.json"
    if not note.exists():
        files.write_json(note, {"run": dataclasses.asdict(what), "key": what.key})
        return
    try:
        found = files.read_json(note).get("run")
    except ValueError as error:
        raise ValueError(f"{error}; remove that file to go on, or move {path} away to train anew") from None
    _check_same(path, found, what)


def _check_same(path: Path, found: Any, what: Run) -> None:
    mine: dict[str, Any] = dataclasses.asdict(what)
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not say which run it holds; move it away to train anew")
    differ = [k for k in sorted({*mine, *found}) if k in found and found[k] != mine.get(k)]
    if differ:
        detail = ", ".join(f"{k} {found[k]!r}, not {mine.get(k)!r}" for k in differ)
        raise ValueError(f"{path} was written by another configuration ({detail}); move it away to train anew")


def _finished(path: Path, what: Run) -> Record | None:
    """The record, if the run has ended and what it has written is whole; damage is named in a warning."""
    if not (path / "record.json").exists() or not (path / "model.safetensors").exists():
        return None
    try:
        content = read_record(path)
        if content["status"] != "finished":
            return None
        checksums = content.get("checksums", {})
        check_files(path, checksums)
    except ValueError as error:
        warnings.warn(f"{error}; it is made again from the last checkpoint", stacklevel=3)
        return None
    _check_same(path, content["run"], what)
    return Record(what, path, content["epochs"], content["classes"], checksums)


def _write_record(record: Record, status: str) -> None:
    content: dict[str, Any] = {"status": status, "run": dataclasses.asdict(record.run), "made_with": made_with()}
    content |= {"classes": record.classes, "epochs": record.epochs, "checksums": record.checksums}
    write_record(record.path, content)


def made_with() -> dict[str, Any]:
    """Versions and hardware, to stand beside every result."""
    return {
        "zosam": zosam.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        **({"processes": current().world} if current().world > 1 else {}),
    }
