"""A run put together: from its words to data, network, optimizer and masks, in the one place where that is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zosam import files, optim
from zosam.distributed.ddp import parallel
from zosam.distributed.ranks import ALONE, Ranks
from zosam.kernels import accelerate, choices, gained
from zosam.lab import data, models
from zosam.lab.clipping import clip_gradients
from zosam.lab.decay_groups import decay_groups, norms_climb
from zosam.lab.device import placed, seed
from zosam.lab.ema import Ema
from zosam.lab.lr_schedules import SCHEDULE, Constant
from zosam.lab.precision import Precision, probe_far_enough
from zosam.lab.radius import rho_over
from zosam.lab.scoring import scoring_loss
from zosam.lab.settings import Choice, Kind
from zosam.lab.train import classification, take_step
from zosam.lab.where import Where
from zosam.names import settings_of
from zosam.optim import SharpnessAware
from zosam.sparse import METHODS, Sparsity

if TYPE_CHECKING:
    from zosam.lab.run import Run


def dense(model: nn.Module, optimizer: SharpnessAware, sparsity: float) -> None:
    """No masks: every weight is trained."""


OPTIMIZER = Kind(
    "optimizer", optim.OPTIMIZERS | optim.PRESETS, given=frozenset({"base", "rho", "seed"}), parts=optim.PARTS
)
METHOD = Kind(
    "sparse method",
    {**METHODS, "dense": dense},
    given=frozenset({"model", "optimizer", "sparsity", "loss", "seed", "steps"}),
)


@dataclass(frozen=True)
class Training:
    """All that a run's steps need, on its device."""

    what: Run
    device: torch.device
    source: data.Data
    model: nn.Module
    network: nn.Module
    """The model as all ranks train it together; on one it is the model."""
    optimizer: SharpnessAware
    sparse: Sparsity | None
    ema: Ema | None
    precision: Precision
    one_schedule: int
    """Steps of the learning-rate schedule; a method that rewinds goes through it more than once."""

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.one_schedule if self.sparse is None else self.sparse.total_steps(self.one_schedule)

    def schedule_step(self, step: int) -> int:
        """Where in its schedule and data a step is: the step itself, unless the method rewinds."""
        return step if self.sparse is None else self.sparse.schedule_step(step)

    def closure(self, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
        """The loss of a batch."""
        smoothing, ranks = self.what.label_smoothing, self.optimizer.ranks
        return classification(self.network, x, y, self.optimizer.per_sample, smoothing, self.precision, ranks)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step on a batch, as it is timed: `fit` takes those that train."""
        self.network.train()
        take_step(self.optimizer, self.closure(x, y), self.precision)
        self.average()

    def average(self) -> None:
        """Let the moving average, if there is one, take in the weights after a step."""
        if self.ema is not None:
            self.ema.update(self.model, None if self.sparse is None else self.sparse.masks)


def assemble(
    what: Run,
    where: Where,
    device: torch.device,
    team: Ranks = ALONE,
    *,
    source: data.Data | None = None,
    steps: int | None = None,
    chosen: Path | None = None,
) -> Training:
    """Put a run together on the device, with all that `where` asks for.

    `source` stands in for the run's own data, and `steps` for the length of its schedule. Where sparse kernels win is
    measured, unless the file `chosen` says so; else it is written there.
    """
    if where.accelerate and what.precision != "fp32":
        raise ValueError(f"the sparse kernels compute in fp32, not in {what.precision}: leave accelerate out")
    seed(device, what.seed)
    if source is None:
        source = load_data(what, where.data_dir, team, where.workers, device)
    model = placed(models.build(what.model, source.classes), device)
    example = next(source.train.epoch(0))[0]
    network = model if team.world == 1 else parallel(model, example)
    if steps is None:
        steps = what.epochs * len(source.train)
    optimizer = build_optimizer(what, model, steps)
    ema = None if what.ema is None else Ema(model, what.ema)
    sparse = build_method(what, model, optimizer, source, steps)
    made = Training(
        what, device, source, model, network, optimizer, sparse, ema, Precision(what.precision, device), steps
    )
    if isinstance(what.rho, Choice):  # it goes back where the training does
        rho = optimizer.schedule
        assert rho is not None
        optimizer.schedule = lambda step, lr: rho(made.schedule_step(step), lr)
    if what.clip is not None:
        clip_gradients(optimizer, what.clip)
    if where.accelerate and sparse is not None:
        _accelerate(model, sparse, example, chosen, team)
    if where.compile:
        network.compile()
    return made


def load_data(
    what: Run,
    data_dir: str | None = None,
    team: Ranks = ALONE,
    workers: int = 2,
    device: torch.device | str = "cpu",
) -> data.Data:
    """The data set of a run on the device, or the part of each of its batches that this rank of `team` sees."""
    share, left = divmod(what.batch_size, team.world)
    if left:
        raise ValueError(f"batch_size is {what.batch_size}: {team.world} processes cannot share it equally")
    return data.load(what.data, share, what.seed, device, data_dir, workers, team.rank, team.world)


def build_base(what: Run, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that takes the step."""
    spares = what.weight_decay_on == "weights"
    params: Any = decay_groups(model, what.weight_decay) if spares else [{"params": list(model.parameters())}]
    if what.perturb_on == "norms":
        params = norms_climb(model, params)
    common: dict[str, Any] = {"lr": what.lr, "weight_decay": what.weight_decay}
    if what.base == "sgd":
        return torch.optim.SGD(params, momentum=what.momentum, nesterov=what.nesterov, **common)
    if what.nesterov:
        raise ValueError("nesterov is for sgd: leave it out, or take base=sgd")
    return torch.optim.AdamW(params, betas=(what.momentum, 0.999), **common)


def build_optimizer(what: Run, model: nn.Module, steps: int) -> SharpnessAware:
    """The optimizer of a training with so many steps."""
    base = build_base(what, model)
    cls = OPTIMIZER.thing(what.optimizer.name)
    filled = {"rho": None if what.rho is None else rho_over(what.rho, steps), "seed": what.seed}
    given = {k: v for k, v in filled.items() if v is not None and k in settings_of(cls)}
    optimizer = cls(base, **given, **what.optimizer.settings)
    if not isinstance(optimizer, SharpnessAware):
        raise ValueError(f"optimizer {what.optimizer} made a {type(optimizer).__name__}, not a zosam.SharpnessAware")
    probe_far_enough(optimizer, what.precision)
    optimizer.diagnostics = {} if what.diagnostics else None
    return optimizer


def build_method(
    what: Run, model: nn.Module, optimizer: SharpnessAware, source: data.Data, steps: int
) -> Sparsity | None:
    """The sparse method; what it must know of the training, where it asks, is filled in."""
    loss = scoring_loss(model, source, METHOD.thing(what.method.name))
    return _method(what, model, optimizer, {"loss": loss, "steps": steps, "epoch": len(source.train)})


def build_schedule(what: Run) -> Constant:
    """The learning rate as a function of the epoch."""
    found: Constant = SCHEDULE.thing(what.schedule.name)(lr=what.lr, epochs=what.epochs, **what.schedule.settings)
    return found


def climbs(what: Run) -> bool:
    """Whether a run's optimizer perturbs anything: it takes a rho, whose default is not 0."""
    rho = settings_of(OPTIMIZER.thing(what.optimizer.name)).get("rho")
    return rho is not None and rho.default != 0.0


def rho_of(what: Run) -> float | Choice | None:
    """The rho of a run, or its optimizer's own; None for one that never climbs, or whose length is not a rho."""
    if not climbs(what) or what.rho is not None:
        return what.rho if climbs(what) else None
    cls = OPTIMIZER.thing(what.optimizer.name)
    own: Any = settings_of(cls)["rho"].default
    if own is None and "sigma" not in what.optimizer.settings:
        own = getattr(cls, "usual_rho", None)
    return None if callable(own) else own  # a schedule that the code brings is the code's


_FINE: set[Any] = set()  # a table has thousands of runs that differ in what cannot be wrong here


def check(what: Run) -> None:
    """Make the optimizer around one number, and the method as far as it comes without a network: both check all."""
    kinds = ((OPTIMIZER, what.optimizer), (METHOD, what.method), (SCHEDULE, what.schedule))
    things = tuple(kind.thing(choice.name) for kind, choice in kinds)
    asked = things + tuple(v for name, v in vars(what).items() if name not in {"model", "data", "seed"})
    if asked in _FINE:
        return
    known = {"loss": lambda: torch.zeros(()), "steps": 1 << 30, "epoch": 1}
    try:
        build_schedule(what)
        optimizer = build_optimizer(what, nn.LayerNorm(1, bias=False), 1 << 30)
        _method(what, _NoNetwork.__new__(_NoNetwork), optimizer, known)
    except _Reached:
        pass
    except TypeError as error:
        raise ValueError(f"{what.optimizer}, {what.method}: {error}") from error
    _FINE.add(asked)


def _method(what: Run, model: nn.Module, optimizer: SharpnessAware, known: dict[str, Any]) -> Sparsity | None:
    cls: Callable[..., Any] = METHOD.thing(what.method.name)
    filled = {"loss": known["loss"], "steps": known["steps"], "seed": what.seed}
    if getattr(cls, "once_an_epoch", False):
        filled["every"] = known["epoch"]
    if not getattr(cls, "draws", True):
        del filled["seed"]
    settings = {k: v for k, v in filled.items() if k in settings_of(cls)} | dict(what.method.settings)
    sparse = cls(model, optimizer, what.sparsity, **settings)
    if sparse is not None and not isinstance(sparse, Sparsity):
        raise ValueError(f"method {what.method} made a {type(sparse).__name__}, not a zosam.Sparsity")
    return sparse


def _accelerate(model: nn.Module, sparse: Sparsity, example: Tensor, chosen: Path | None, team: Ranks) -> None:
    """Run on the sparse kernels; where they win is measured once and kept, or a resumed run could end in other bits."""
    if chosen is None:
        accelerate(model, sparse, example)
        return

    def measure() -> None:
        if not chosen.exists():
            found = choices(accelerate(model, sparse, example))
            files.write(chosen.with_suffix(".txt"), gained(model).encode())
            files.write_json(chosen, found)

    team.lead(measure)
    accelerate(model, sparse, example, files.read_json(chosen))


class _Reached(Exception):
    """All that can be checked without a network was."""


class _NoNetwork(nn.Module):
    """Where a network will be: who looks at it has checked all else."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise _Reached
