"""Trainings that end in the same bits have one address, others have two: settings of all optimizers and methods."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from zosam.lab import models
from zosam.lab import run as run_module
from zosam.lab.assemble import METHOD, OPTIMIZER, assemble, build_schedule
from zosam.lab.data.batches import Size
from zosam.lab.data.stand_in import stand_in
from zosam.lab.run import Run
from zosam.lab.where import Where

SOURCE = stand_in(Size(24, 8, 10, (1, 8, 8)), 12)
STEPS = 6
SCALES = (None, "none", "filter", "element", "scale(filter)", "scale(element,0.01)", "scale(element,0.3)")


def product(name, **values):
    """All ways to write it with these settings; None leaves one out."""
    for chosen in itertools.product(*values.values()):
        settings = ",".join(f"{k}={v}" for k, v in zip(values, chosen, strict=True) if v is not None)
        yield f"{name}:{settings}" if settings else name


def optimizers(*spellings, rhos=(None, 0, 0.1)):
    return [{"optimizer": o, "rho": r} for s in spellings for o in s for r in rhos]


def methods(*spellings, sparsity=0.5, **common):
    return [{"method": m, "sparsity": sparsity, **common} for s in spellings for m in s]


DENSE = (None, "()", "first", "(first)", "(first,last)", "(last,first,last)")
MOVING = {"every": (2,)}
SWEEPS = {
    "sam": optimizers(
        ["sgd"],
        product("sam", scale=SCALES),
        ["sam:batch_fraction=1/2", "sam:batch_fraction=1/2,scale=element"],
        product("asam", eta=(None, 0.01, 0.3)),
        product("gsam", alpha=(None, 0, 0.4), scale=(None, "element")),
        product("looksam", k=(None, 1, 2), scale=(None, "element")),
        product("looksam", alpha=(0, 0.7)),
        product("esam", beta=(None, 1), gamma=(None, 1), scale=(None, "element")),
        rhos=(None, 0.1),
    )
    + optimizers(["sam", "asam:eta=0.3", "gsam:alpha=0", "looksam:k=2", "esam"], rhos=(0, "late:1,0.1")),
    "random": optimizers(
        ["sgd"],
        product("rwp", eta=(None, 0, 1)),
        product("rwp", beta=(0, 0.99), eta=(1,)),
        ["noisysam"],
        product("randomsam", scale=(None, "filter")),
        product("s2sam", scale=(None, "filter")),
        product("msam", scale=(None, "filter")),
        product("paperzosam", delta=(None, 0.001, 0.1), directions=(None, 1, 2)),
    )
    + optimizers(product("rwp", sigma=(0, 0.1, 0.2)), rhos=(None,)),
    "zosam": optimizers(
        product("zosam", probe=(None, "gaussian(1)", "gaussian(2)", "momentum", "subspace(1)"), every=(None, 1, 2)),
        product("zosam", decide=(None, "worst", "pair", "central(batch_fraction=1)"), scale=(None, "filter")),
        ["zosam.fast", "zosam:probe=rademacher,decide=central(batch_fraction=1/8),every=2"],
        ["zosam:probe=rademacher,decide=worst(1/8),every=2", "zosam:decide=central(radius=0.05)"],
        rhos=(None, 0.05),
    ),
    "bf16": [
        {"optimizer": f"zosam:probe=gaussian(2){decide}", "rho": 0.05, "precision": "bf16"}
        for decide in ("", ",decide=central(radius=0.05)", ",decide=central(delta=0.003)", ",decide=central(delta=0.1)")
    ],
    "rho": [
        {"optimizer": "sam", "rho": rho, "schedule": schedule}
        for schedule in ("constant", "cosine")
        for rho in (
            0.1,
            0,
            "late:0,0.1",
            "late:1,0.1",
            "late:0.5,0.1",
            "late:0.5,0",
            "linear:0.1,0.1",
            "linear:0,0.1",
            "cosine:0.1,0.1",
            "cosine:0,0.1",
            "proportional:0.1,0.1",
            "proportional:0.1,0.1,0.1",
            "proportional:0,0.1",
        )
    ],
    "sparsity 0": methods(METHOD.table, (f"{m}:every=2" for m in ("set", "svite", "snfs", "rigl")), sparsity=0),
    "layers": methods(
        product("random", dense=DENSE, budget=("uniform",)),
        product("random", budget=(None, "uniform", "erk"), exclude=(None, "last", "(last)")),
        product("random", over=("masked",), dense=("(first,last)", "(last,first)"), budget=("uniform",)),
        product("mest", dense=(None, "(first,shortcut,last)", "(last,shortcut,first)", "()"), **MOVING),
        ["magnitude", "snip", "grasp", "synflow:rounds=2", "synflow:rounds=3"],
        sparsity=0.7,
    ),
    "moving": methods(
        product("set", drop_fraction=(None, 0.3, 0.5), until=(None, 0.5, 1), **MOVING),
        product("svite", candidates=(None, 0.5, 1), growth_gradient=(None, "theta"), **MOVING),
        product("rigl", candidates=(None, 0.5, 1), growth_gradient=(None, "theta"), **MOVING),
        product("mest", dense=("()",), drop_fraction=(None, 0.2, 0.5), lam=(None, 0, 1), **MOVING),
        product("mest", dense=("()",), soft=("true",), extra=(None, 0.1, 0.2), **MOVING),
        product("deepr", every=(None, 1, 2), l1=(None, 0), temperature=(None, 1e-4)),
        product("dsr", threshold=(None, 0.001, 0.1), **MOVING),
        product("snfs", every=(1, 2), drop_fraction=(None, 0.5)),
        product("gmp", budget=(None, "uniform", "global"), **MOVING),
        product("lth", levels=(1, 2)),
        optimizer="sgd",
    ),
    "top-kast": methods(product("topkast", backward_sparsity=(None, 0, 0.25, 0.5), **MOVING), sparsity=0.75),
}


def network(*_):
    convolutions = nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 16, 3), nn.ReLU()
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16, 10))


def ends(fields, monkeypatch):
    """The bits in which a training as it is written ends, and the passes that it took: `pair` is `worst` with fewer."""
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "spell_in_one_way", lambda what: None)
        patch.setattr(models, "build", network)
        what = Run(**fields)
        training = assemble(what, Where(), torch.device("cpu"), source=SOURCE, steps=STEPS)
    schedule, batches = build_schedule(what), list(SOURCE.train.epoch(0))
    for i in range(STEPS):
        x, y = batches[i % len(batches)]
        for group in training.optimizer.param_groups:
            group["lr"] = schedule(i / STEPS * what.epochs)
        training.step(x + i / 10, y)
    bits = b"".join(t.numpy().tobytes() for t in training.model.state_dict().values())
    return bits, str(training.optimizer.passes)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.filterwarnings("ignore")
def test_one_address_is_one_training(sweep, monkeypatch):
    by_bits, by_address = {}, {}
    for given in SWEEPS[sweep]:
        fields = {"method": "set:every=3", "sparsity": 0.5, **given}
        what = Run(**fields)
        bits = ends(fields, monkeypatch)
        assert by_bits.setdefault(bits, what) == what, f"{given} trains as {by_bits[bits].written()} does"
        assert by_address.setdefault(what.key, bits) == bits, f"{given} does not train as {what.written()} does"


def test_how_often_masks_move_unless_told_is_one_address_with_the_number_itself():
    digits = {"data": "digits", "epochs": 20, "batch_size": 64}  # 1,437 of them: 23 steps an epoch
    assert (
        Run(method="svite", **digits) == Run(method="svite:every=4", **digits) != Run(method="svite:every=5", **digits)
    )
    assert (
        Run(method="snfs", **digits) == Run(method="snfs:every=23", **digits) != Run(method="snfs:every=20", **digits)
    )


def test_all_are_tried():
    spelled = [f for sweep in SWEEPS.values() for f in sweep]
    for field, kind in (("optimizer", OPTIMIZER), ("method", METHOD)):
        tried = {kind.read(f[field]).name for f in spelled if field in f}
        assert tried == set(kind.table)
