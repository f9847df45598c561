"""One training, described by a `Run`; its address is the hash of the description, so it is never done twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor, nn

import zosam
from zosam import data, files, models
from zosam.kernels import accelerate
from zosam.names import canonical, check_settings, find, parse, settings_of
from zosam.optim import OPTIMIZERS, SharpnessAware
from zosam.sparse import METHODS, Sparsity
from zosam.sparse.files import save_state, saved_masks
from zosam.train import classification, fit

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
    """Record, for each epoch, mean length of the perturbation, its cosine with the gradient, and losses of probes."""
    seed: int = 0
    """Seed of initialization, data order, masks and directions."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # equal runs must have equal addresses, however they are written
            value = getattr(self, field.name)
            if isinstance(field.default, float):
                object.__setattr__(self, field.name, float(value))
            elif field.name in {"method", "optimizer", "data"} or (field.name == "model" and "=" in value):
                object.__setattr__(self, field.name, canonical(value))
        if self.method == "dense":
            object.__setattr__(self, "sparsity", 0.0)
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


@dataclass(frozen=True)
class Record:
    """What a finished run has to say."""

    run: Run
    path: Path
    epochs: list[dict[str, Any]]
    classes: int

    @property
    def last(self) -> dict[str, Any]:
        return self.epochs[-1]

    def load(self) -> nn.Module:
        """The trained network."""
        with torch.random.fork_rng():
            model = models.build(self.run.model, self.classes)
        model.load_state_dict(safetensors.torch.load_file(self.path / "model.safetensors"))
        return model

    def masks(self) -> dict[str, Tensor]:
        """The masks it ended with, by the name of the weight."""
        file = self.path / "sparse.safetensors"
        return saved_masks(file) if file.exists() else {}


def run(
    what: Run, root: str | Path = "runs", *, data_dir: str | None = None, tick: Callable[[int, int], None] | None = None
) -> Record:
    """Train `what` in its folder under `root`: from its last checkpoint if there is one, not at all if it is done.

    `tick` is told after every step how many of how many are done. The caller's random streams are left alone.
    """
    path = Path(root) / what.folder
    with files.locked(path), torch.random.fork_rng():
        _claim(path, what)
        finished = _finished(path, what)
        return finished if finished is not None else _train(what, path, data_dir, tick or (lambda step, steps: None))


def finished(path: Path) -> Record:
    """The record of a run that has ended, by its folder."""
    try:
        content = json.loads((path / "record.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is not the folder of a run, or has no finished epoch yet") from None
    if content["status"] != "finished":
        raise ValueError(f"{path} is not finished: train it to the end first")
    return Record(Run(**content["run"]), path, content["epochs"], content["classes"])


def _train(what: Run, path: Path, data_dir: str | None, tick: Callable[[int, int], None]) -> Record:
    torch.manual_seed(what.seed)
    source = load_data(what, data_dir)
    model = models.build(what.model, source.classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = build_optimizer(what, model)
    one_schedule = what.epochs * len(source.train)
    sparse = build_method(what, model, optimizer, source, one_schedule)
    if what.accelerate and sparse is not None:
        accelerate(model, sparse, next(source.train.epoch(0))[0])
    steps = one_schedule if sparse is None else sparse.total_steps(one_schedule)
    epochs: list[dict[str, Any]] = []
    state = files.load_latest(path)
    if state is not None:
        epochs = state["epochs"]
        model.load_state_dict(state["model"])
        if sparse is not None:
            sparse.load_state_dict(state["sparse"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer.passes.update({k: epochs[-1][k] for k in optimizer.passes})
        torch.set_rng_state(state["rng"])
    done = epochs[-1]["step"] if epochs else 0
    tick(done, steps)

    def one_more() -> None:
        nonlocal done
        done += 1
        tick(done, steps)

    for epoch in fit(
        model,
        optimizer,
        source.train,
        source.test,
        steps,
        start=done,
        schedule=lambda now: learning_rate(what.schedule, now / one_schedule),
        place=(lambda step: step) if sparse is None else sparse.schedule_step,
        label_smoothing=what.label_smoothing,
        tick=one_more,
    ):
        epochs.append({**epoch, "sparsity": 0.0 if sparse is None else sparse.sparsity})
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        state |= {"sparse": None if sparse is None else sparse.state_dict(), "epochs": epochs}
        files.save(path, epoch["step"], state)
        _write_record(path, what, epochs, source.classes, "training")
    tensors = {name: t.detach().contiguous() for name, t in model.state_dict().items()}
    files.write(path / "model.safetensors", safetensors.torch.save(tensors))
    if sparse is not None:
        save_state(sparse, path / "sparse.safetensors")
    _write_record(path, what, epochs, source.classes, "finished")
    return Record(what, path, epochs, source.classes)


def load_data(what: Run, data_dir: str | None = None) -> data.Data:
    return data.load(what.data, what.batch_size, what.seed, data_dir=data_dir)


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
    mine: dict[str, Any] = dataclasses.asdict(what)
    note = path / "run.json"
    if not note.exists():
        files.write_json(note, {"run": mine, "key": what.key})
        return
    try:
        found: dict[str, Any] = json.loads(note.read_text())["run"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{note} cannot be read ({error}); move {path} away to train anew") from None
    differ = [k for k in sorted({*mine, *found}) if k in found and found[k] != mine.get(k)]
    if differ:
        detail = ", ".join(f"{k} {found[k]!r}, not {mine.get(k)!r}" for k in differ)
        raise ValueError(f"{path} was written by another configuration ({detail}); move it away to train anew")


def _finished(path: Path, what: Run) -> Record | None:
    record = path / "record.json"
    if not record.exists() or not (path / "model.safetensors").exists():
        return None
    content = json.loads(record.read_text())
    return Record(what, path, content["epochs"], content["classes"]) if content["status"] == "finished" else None


def _write_record(path: Path, what: Run, epochs: list[dict[str, Any]], classes: int, status: str) -> None:
    made_with = {
        "zosam": zosam.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    content = {"status": status, "run": dataclasses.asdict(what), "made_with": made_with, "classes": classes}
    content["epochs"] = epochs
    files.write_json(path / "record.json", content)
