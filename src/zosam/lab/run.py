"""One training, described by a `Run`; its address is the hash of the description, so it is never done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_type_hints

from zosam.distributed.ranks import joined
from zosam.lab import checkpoints, data, models
from zosam.lab.assemble import METHOD, OPTIMIZER, check, climbs, rho_of
from zosam.lab.attempt import attempt
from zosam.lab.callbacks import Callbacks, Tick, nobody
from zosam.lab.claim import check_same, claim, no_run
from zosam.lab.length import stretched
from zosam.lab.locks import locked
from zosam.lab.lr_schedules import SCHEDULE, with_usual_steps
from zosam.lab.one_spelling import spell_in_one_way
from zosam.lab.preempt import stoppable
from zosam.lab.radius import Radius
from zosam.lab.record import Record, check_files, read_record
from zosam.lab.settings import Choice, Chosen, typed
from zosam.lab.where import Where

SCHEMA = 1  # of descriptions: a number more when a field, or what one means, changes
OFF: dict[str, Any] = {  # what is off has no effect and no place in an address: a new feature leaves old ones alone
    "nesterov": False, "weight_decay_on": "all", "clip": None, "label_smoothing": 0.0, "ema": None,
    "precision": "fp32", "diagnostics": False, "rho": None, "perturb_on": "all",
}  # fmt: skip
LOWEST = {"epochs": 1, "batch_size": 1, "lr": 0, "weight_decay": 0, "seed": 0}
HIGHEST = {"epochs": 1_000_000, "batch_size": 1 << 20}
field_types: Callable[[type], dict[str, Any]] = cache(get_type_hints)  # it takes longer than all else in making a run


@dataclass(frozen=True, eq=False)
class Run:
    """What to train and how. Two runs are the same if all that has an effect is, however they are written.

    Every value is checked here, and an error names the nearest valid one; neither data nor a network is needed for it.
    """

    model: Chosen = Chosen(models.NETWORKS, "digits_net")
    """Network: a name that `zosam list` shows, or module:function of your own."""
    data: Chosen = Chosen(data.DATA_SETS, "digits")
    """Data set: a name that `zosam list` shows, or module:function of your own."""
    method: Chosen = Chosen(METHOD, "rigl")
    """Sparse method with settings, such as rigl or set:every=50,drop_fraction=0.5; dense for none."""
    sparsity: float = 0.9
    """Share of weights that are zero."""
    optimizer: Chosen = Chosen(OPTIMIZER, "zosam")
    """Optimizer with settings, such as sgd, sam or looksam:k=10."""
    rho: Radius = Radius()
    """Length of the perturbation: a number, or a schedule such as late:0.9,0.1; the optimizer's own unless given."""
    perturb_on: Literal["all", "norms"] = "all"
    """What is perturbed: all weights, or norm layers only (SAM-ON)."""
    base: Literal["sgd", "adamw"] = "sgd"
    """Torch optimizer that takes the step."""
    epochs: int = 15
    """Passes over the training data."""
    length: float = 1.0
    """Multiply the length of the training: epochs, schedule and mask updates are stretched alike."""
    batch_size: int = 64
    """Pictures per step, over all processes together."""
    lr: float = 0.1
    """Learning rate at the start."""
    momentum: float = 0.9
    """Momentum of sgd; first beta of adamw."""
    nesterov: bool = False
    """Nesterov's momentum, for sgd."""
    weight_decay: float = 5e-4
    """Weight decay."""
    weight_decay_on: Literal["all", "weights"] = "all"
    """What is decayed: all parameters, or weights only, without norms, biases, class tokens and positions."""
    schedule: Chosen = Chosen(SCHEDULE, "cosine")
    """Learning-rate schedule, in epochs: cosine, steps:at=(80,120) or constant, each with warmup and more."""
    clip: float | None = None
    """Clip gradients to this norm before the step."""
    label_smoothing: float = 0.0
    """Share of the label that is spread over all classes."""
    ema: float | None = None
    """Keep a moving average of the weights with this decay, such as 0.9999, and test it as well."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the passes; weights stay in fp32. ZO-SAM's probes go further away in bf16 and fp16."""
    diagnostics: bool = False
    """Record for each epoch the perturbation's length and cosine with the gradient, probes, variance and masks."""
    seed: int = 0
    """Seed of initialization, data order, masks and directions."""

    def __post_init__(self) -> None:
        for name, wanted in field_types(type(self)).items():
            if wanted not in (Chosen, Radius):
                object.__setattr__(self, name, typed(name, getattr(self, name), wanted))
        for name, low in LOWEST.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise ValueError(f"{name} must be {low} or more, not {value}")
        for name, high in HIGHEST.items():
            if getattr(self, name) > high:
                raise ValueError(f"{name} must be at most {high:,}, not {getattr(self, name):,}")
        for name in ("sparsity", "label_smoothing", "momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0 < self.length < 1e6:
            raise ValueError(f"length must be above 0, not {self.length}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be above 0, not {self.clip}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise ValueError(f"ema must be at least 0 and below 1, not {self.ema}")
        self._stretch()
        if all(kind.knows(choice) for kind, choice in ((OPTIMIZER, self.optimizer), (METHOD, self.method))):
            check(self)
        try:
            size = data.size_of(self.data)
        except ValueError as error:
            raise ValueError(f"data {self.data}: {error}") from None
        if size is not None and self.batch_size > size.train:
            raise ValueError(
                f"batch_size must be at most {size.train:,}, all that {self.data} has to train on,"
                f" not {self.batch_size:,}"
            )
        spell_in_one_way(self)
        if models.NETWORKS.knows(self.model):
            models.fits(self.model, None if size is None else size.classes)

    def _stretch(self) -> None:
        """Let epochs, schedule and method say themselves how long the training is."""
        if self.length == 1:
            return
        epochs = max(1, math.floor(self.length * self.epochs + 1e-9))
        factor = epochs / self.epochs
        for name, kind in (("schedule", SCHEDULE), ("method", METHOD)):
            object.__setattr__(self, name, stretched(kind, getattr(self, name), factor))
        object.__setattr__(self, "epochs", epochs)
        object.__setattr__(self, "length", 1.0)

    @classmethod
    def read(cls, description: Any) -> Run:
        """The run that a file describes; code of the user's own that it names is not imported."""
        if not isinstance(description, dict) or description.get("schema") != SCHEMA:
            raise ValueError(f"it describes no run of schema {SCHEMA}, which this zosam reads")
        known = {f.name for f in dataclasses.fields(cls)}
        fields = {name: value for name, value in description.items() if name in known}
        for name, field in vars(cls).items():
            if isinstance(field, Chosen) and isinstance(fields.get(name), str):
                fields[name] = field.kind.read(fields[name], trusted=False)
        found = cls(**fields)
        if found.description != description:
            differ = sorted(
                k for k in {*description, *found.description} if description.get(k) != found.description.get(k)
            )
            raise ValueError(f"it describes no run: {', '.join(differ)} cannot be right")
        return found

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that has an effect, with every default filled in: what the address is made of."""
        found: dict[str, Any] = {"schema": SCHEMA}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            found[field.name] = value.whole if isinstance(value, Choice) else value
        if OPTIMIZER.knows(self.optimizer):
            rho = rho_of(self)
            found["rho"] = rho.whole if isinstance(rho, Choice) else rho
        found["schedule"] = with_usual_steps(self.schedule, self.epochs).whole
        off = {name for name, value in OFF.items() if found[name] == value} | {"length", *self.idle}
        return {name: value for name, value in found.items() if name not in off}

    @cached_property
    def idle(self) -> dict[str, str]:
        """The fields that have no effect beside the others, and why."""
        found: dict[str, str] = {}
        if self.method.name == "dense":
            found["sparsity"] = "dense has no masks"
        if self.weight_decay == 0:
            found["weight_decay_on"] = "weight_decay is 0"
        if OPTIMIZER.knows(self.optimizer) and not climbs(self):
            found["rho"] = found["perturb_on"] = f"{self.optimizer.name} perturbs nothing"
        return found

    def stripped(self) -> Run:
        """The same run without what has no effect in it."""
        return dataclasses.replace(self, **{name: getattr(type(self)(), name) for name in self.idle})

    def written(self) -> dict[str, Any]:
        """What is not at its default, as one would write it."""
        mine, default = self.__dict__, type(self)().__dict__
        fields = (f.name for f in dataclasses.fields(self) if mine[f.name] != default[f.name])
        return {n: str(mine[n]) if isinstance(mine[n], Choice) else mine[n] for n in fields}

    @cached_property
    def key(self) -> str:
        """The address: a hash of the whole description."""
        return hashlib.sha256(json.dumps(self.description, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The name of the run's folder: what it is, for people, and the key."""
        sparsity = f"{100 * self.sparsity:g}" if self.sparsity and self.method.name != "dense" else ""
        words = f"{self.data}-{self.model.name}-{self.method.name}{sparsity}-{self.optimizer.name}"
        return re.sub(r"[^\w.=-]+", "_", words)[:150] + f"-{self.key}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.description == other.description

    def __hash__(self) -> int:
        return hash(self.key)


def run(
    what: Run,
    root: str | Path = "runs",
    *,
    tick: Tick = nobody,
    on_steps: Callable[[dict[str, Any]], None] | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_test: Tick = nobody,
    on_kernels: Callable[[str], None] | None = None,
    **where: Any,
) -> Record:
    """Train `what` in its folder under `root`: from its last checkpoint if there is one, not at all if it is done.

    `where` are the fields of `zosam.lab.where.Where`: device, workers, accelerate and so on. The functions are told
    how it goes, by rank 0 alone but for `tick`: see `zosam.lab.callbacks.Callbacks`. The caller's random streams are
    left alone. A checkpoint is written after every epoch, every `checkpoint_minutes` within a long one, on SIGTERM,
    which then raises `Preempted`, and on Ctrl-C, which then raises KeyboardInterrupt; a second Ctrl-C does not wait.

    Under torchrun, or where `torch.distributed` is up, all ranks call it and train together, each on its part of
    every batch: the training is that of one process, up to rounding. Rank 0 alone writes.
    """
    for name, why in what.idle.items():
        if getattr(what, name) not in (getattr(Run(), name), 0.0):
            raise ValueError(f"{name}={getattr(what, name)} has no effect, for {why}: leave it out")
    path, how = Path(root) / what.folder, Where.of(where)
    told = Callbacks(tick, on_steps, on_epoch, on_test, on_kernels)
    fresh = [folder for folder in (path, *path.parents) if not folder.exists()]
    done = _finished(path, what)  # to look at it takes no lock, and no right to write
    if done is not None:
        return done
    with how.here() as device, joined(device) as team, ExitStack() as held, stoppable() as notice:
        lock = team.lead(lambda: held.enter_context(locked(path)))
        team.lead(lambda: claim(path, what))
        done = _finished(path, what)
        if done is None:
            try:
                attempt(what, path, how, device, told, notice, lock)
            except BaseException as error:
                error.add_note(f"network {what.model}, data {what.data}")
                if fresh and lock is not None and lock.intact and not checkpoints.of(path):  # nothing to go on from
                    shutil.rmtree(path, ignore_errors=True)
                    with suppress(OSError):  # somebody else may be there by now
                        for folder in fresh[1:]:
                            folder.rmdir()
                raise
        return done or finished(path, what)


def finished(path: str | Path, what: Run | None = None) -> Record:
    """The record of a run that has ended, by its folder; of `what`, or of the run that it says it is."""
    path = Path(path)
    try:
        content = read_record(path)
    except FileNotFoundError:
        raise no_run(path) from None
    if content["status"] != "finished":
        raise ValueError(f"{path} is not finished: train it to the end first")
    if what is None:
        try:
            what = Run.read(content["run"])
        except ValueError as error:
            raise ValueError(f"{path / 'record.json'}: {error}") from None
    check_same(path, content["run"], what)
    return Record(what, path, content["epochs"], content["classes"], content.get("checksums", {}))


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
    check_same(path, content["run"], what)
    return Record(what, path, content["epochs"], content["classes"], checksums)
