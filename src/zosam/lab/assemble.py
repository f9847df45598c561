"""From the words of a run to its data, optimizer and masks; and a check of the words that needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zosam import optim
from zosam.distributed.ranks import ALONE, Ranks
from zosam.lab import data
from zosam.lab.decay_groups import decay_groups, norms_climb
from zosam.lab.learning_rate import SCHEDULE, Constant
from zosam.lab.precision import probe_far_enough
from zosam.lab.radius import rho_over
from zosam.lab.scoring import scoring_loss
from zosam.lab.settings import Choice, Kind
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


def rho_of(what: Run) -> float | Choice | None:
    """The rho of a run, or its optimizer's own; None for one that takes none, or that never climbs."""
    rho = settings_of(OPTIMIZER.thing(what.optimizer.name)).get("rho")
    if rho is None or rho.default == 0.0:
        return None
    own: float | None = rho.default
    return own if what.rho is None else what.rho


@cache
def spelled_out(preset: Choice) -> Choice:
    """A preset such as zosam.fast as the optimizer that it makes, with the settings in which that one differs."""

    def base() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.zeros(1, 1))], lr=0.1, momentum=0.9)

    made = optim.PRESETS[preset.name](base(), **preset.settings)
    plain = type(made)(base()).settings()
    settings = {n: getattr(made, n) for n, text in made.settings().items() if text != plain[n]}
    return OPTIMIZER.read(str(Choice(type(made).__name__.lower(), "", settings)))


def check(what: Run) -> None:
    """Make the optimizer around one number, and the method as far as it comes without a network: both check all."""
    known = {"loss": lambda: torch.zeros(()), "steps": 1 << 30, "epoch": 1}
    try:
        build_schedule(what)
        optimizer = build_optimizer(what, nn.LayerNorm(1, bias=False), 1 << 30)
        _method(what, _NoNetwork.__new__(_NoNetwork), optimizer, known)
    except _Reached:
        pass
    except TypeError as error:
        raise ValueError(f"{what.optimizer}, {what.method}: {error}") from error


def _method(what: Run, model: nn.Module, optimizer: SharpnessAware, known: dict[str, Any]) -> Sparsity | None:
    cls: Callable[..., Any] = METHOD.thing(what.method.name)
    filled = {"loss": known["loss"], "steps": known["steps"], "seed": what.seed}
    if getattr(cls, "once_an_epoch", False):
        filled["every"] = known["epoch"]
    settings = {k: v for k, v in filled.items() if k in settings_of(cls)} | dict(what.method.settings)
    sparse = cls(model, optimizer, what.sparsity, **settings)
    if sparse is not None and not isinstance(sparse, Sparsity):
        raise ValueError(f"method {what.method} made a {type(sparse).__name__}, not a zosam.Sparsity")
    return sparse


class _Reached(Exception):
    """All that can be checked without a network was."""


class _NoNetwork(nn.Module):
    """Where a network will be: who looks at it has checked all else."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise _Reached
