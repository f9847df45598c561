"""Runs: never done twice, resumed bit for bit, and nothing is lost on bad input or a sudden end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from zosam import files
from zosam.lab import assemble, checkpoints
from zosam.lab.locks import Busy, locked
from zosam.lab.run import Run, finished, run
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS

SMALL = Run(model="digits_net:width=4", epochs=3, method="rigl:every=5", batch_size=256, optimizer="zosam", rho=0.1)


def weights(path):
    return safetensors.torch.load_file(path / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_run_is_its_description():
    assert Run().key == Run(seed=0).key
    assert Run(seed=1).key != Run().key
    assert Run(optimizer="looksam:k=3,alpha=0.5").key == Run(optimizer=" looksam: alpha=0.5, k=3").key
    assert Run(rho=0).key == Run(rho=0.0).key != Run().key
    assert Run(data="digits:").key == Run().key
    assert Run().folder.startswith("digits-digits_net-rigl90-zosam-")
    assert Run(method="dense").folder.startswith("digits-digits_net-dense-zosam-")


def test_equal_trainings_have_equal_addresses():
    for one, other in [
        ({"method": "rigl"}, {"method": "rigl:every=100"}),
        ({"method": "rigl"}, {"method": "rigl:budget=erk,drop_fraction=0.3"}),
        ({"optimizer": "looksam"}, {"optimizer": "looksam:k=5,alpha=0.7", "rho": 0.05}),
        ({"optimizer": "asam"}, {"optimizer": "asam", "rho": 0.5}),
        ({"optimizer": "rwp"}, {"optimizer": "rwp", "rho": 0.2}),
        ({"optimizer": "sgd"}, {"optimizer": "sgd", "rho": 0.1}),
        ({"method": "dense"}, {"method": "dense", "sparsity": 0.5}),
        ({"optimizer": "zosam"}, {"optimizer": "zosam:probe=gaussian(1),decide=central(batch_fraction=1)"}),
        (
            {"optimizer": "zosam.fast"},
            {"optimizer": "zosam:probe=rademacher,decide=central(batch_fraction=1/8),every=2", "rho": 0.05},
        ),
        ({"weight_decay": 0.0}, {"weight_decay": 0.0, "weight_decay_on": "weights"}),
        ({"model": "resnet20"}, {"model": "resnet20:stem_stride=1"}),
        ({"data": "cifar10"}, {"data": "cifar10:validation=0"}),
        ({"optimizer": "sam"}, {"optimizer": Run(optimizer="sam").optimizer.whole}),
        ({"optimizer": "asam"}, {"optimizer": "sam:scale=element", "rho": 0.5}),
        ({"optimizer": "asam:eta=0.1", "rho": 0.05}, {"optimizer": "sam:scale=scale(element,0.1)"}),
        ({"optimizer": "zosam:scale=filter"}, {"optimizer": "zosam:scale=scale(filter)"}),
        ({"optimizer": "sgd"}, {"optimizer": "sam", "rho": 0}),
        ({"optimizer": "sgd"}, {"optimizer": "zosam.fast", "rho": "late:1,0.1"}),
        ({"rho": 0.1}, {"rho": "late:0,0.1"}),
        ({"rho": 0.1}, {"rho": "linear:0.1,0.1"}),
        ({"schedule": "steps"}, {"schedule": "steps:at=(7.5,11.25)"}),
        ({"method": "dense"}, {"method": "random", "sparsity": 0}),
        ({"method": "dense"}, {"method": "snip", "sparsity": 0}),
        ({"method": "rigl:every=50"}, {"method": "rigl:every=50,candidates=1"}),
        ({"method": "dense"}, {"method": "set:every=50", "sparsity": 0}),
        ({"method": "dense"}, {"method": "topkast", "sparsity": 0}),
        ({"method": "set:dense=(first,last)"}, {"method": "set:dense=(last,first,last)"}),
        ({"method": "set:exclude=(first)"}, {"method": "set:exclude=first"}),
        ({"method": "mest"}, {"method": "mest:dense=(last,shortcut,first)"}),
        ({"method": "mest:soft=true"}, {"method": "mest:soft=true,extra=0.5"}),
        ({"method": "topkast"}, {"method": "topkast:backward_sparsity=0.8"}),
        ({"method": "rigl", "optimizer": "sgd"}, {"method": "rigl:growth_gradient=theta", "optimizer": "sgd"}),
        (
            {"method": "rigl", "optimizer": "sgd"},
            {"method": "rigl:growth_gradient=theta", "optimizer": "sam", "rho": 0},
        ),
        ({"optimizer": "sam"}, {"optimizer": "gsam:alpha=0"}),
        ({"optimizer": "sam:per_rank=true"}, {"optimizer": "looksam:k=1,per_rank=true"}),
        ({"optimizer": "asam", "rho": 0.1}, {"optimizer": "esam:beta=1,gamma=1,scale=element", "rho": 0.1}),
        ({"optimizer": "sgd"}, {"optimizer": "rwp:sigma=0"}),
        (
            {"optimizer": "zosam:probe=rademacher,decide=central(batch_fraction=1/2)"},
            {"optimizer": "zosam:probe=rademacher,decide=worst(1/2)"},
        ),
        (
            {"schedule": "constant", "optimizer": "sam", "rho": 0.1},
            {"schedule": "constant", "optimizer": "sam", "rho": "proportional:0.2,0.2"},
        ),
        ({"rho": 0.1}, {"rho": 0.1, "optimizer": "zosam:decide=central(radius=0.1)"}),
        ({"precision": "bf16"}, {"precision": "bf16", "optimizer": "zosam:decide=central(delta=0.003)"}),
        ({"model": "wrn28_10"}, {"model": "wrn:depth=28,width=10"}),
        ({"weight_decay": 0.0}, {"weight_decay": -0.0}),
        ({"method": "mest:lam=0"}, {"method": "mest:lam=-0.0"}),
    ]:
        assert Run(**one) == Run(**other)
        assert len({Run(**one), Run(**other)}) == 1
        assert Run(**one).key == Run(**other).key != Run(seed=1, **one).key


def test_trainings_that_are_only_nearly_equal_have_addresses_of_their_own():
    for one, other in [
        ({"method": "dense"}, {"method": "rigl", "sparsity": 0}),  # its updates take the place of steps
        ({"method": "dense"}, {"method": "lth", "sparsity": 0}),  # it trains twice
        ({"method": "dense"}, {"method": "deepr", "sparsity": 0}),  # its weights keep their signs
        ({"method": "rigl"}, {"method": "rigl:candidates=0.5"}),
        ({"method": "snfs"}, {"method": "snfs:every=1"}),  # once an epoch, and at every step
        ({"method": "svite"}, {"method": "svite:every=1"}),
        (
            {"schedule": "constant:warmup=1", "optimizer": "sam", "rho": 0.1},
            {"schedule": "constant:warmup=1", "optimizer": "sam", "rho": "proportional:0.2,0.2"},
        ),
        ({"rho": 0.2}, {"rho": 0.2, "optimizer": "zosam:decide=central(radius=0.1)"}),
        ({"precision": "bf16"}, {"precision": "bf16", "optimizer": "zosam:decide=central(radius=0.05)"}),
        ({}, {"optimizer": "zosam:decide=central(delta=0.003)"}),
        ({"model": "wrn28_10"}, {"model": "wrn:dropout=0.1"}),
        (
            {"rho": "linear:0.1,0.2"},
            {"rho": "linear:0.1,0.2", "optimizer": "zosam:decide=central(radius=0.1)"},
        ),
    ]:
        assert Run(**one).key != Run(**other).key


def test_what_has_no_effect_comes_back_when_it_has():
    assert dataclasses.replace(Run(method="dense", sparsity=0.5), method="set") == Run(method="set", sparsity=0.5)
    assert dataclasses.replace(Run(optimizer="sgd", rho=0.2), optimizer="sam") == Run(optimizer="sam", rho=0.2)


def test_the_address_is_the_hash_of_the_whole_description_and_its_schema():
    what = Run(model="digits_net", method="dense", optimizer="sgd")
    assert what.description == {
        "schema": 1, "model": what.model.whole, "data": "digits", "method": "dense", "optimizer": "sgd", "base": "sgd",
        "epochs": 15, "batch_size": 64, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005, "seed": 0,
        "schedule": "cosine:cooldown=0,minimum=0,per_epoch=false,warmup=0,warmup_lr=0",
    }  # fmt: skip
    text = json.dumps(what.description, sort_keys=True)
    assert what.key == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert Run.read(json.loads(text)) == what
    for change in ({"schema": 2}, {"schema": None}, {"lr": None}, {"rho": 0.1}, {"modl": "x"}):
        with pytest.raises(ValueError, match=r"describes no run|lr must be"):
            Run.read(what.description | change)
    with pytest.raises(ValueError, match="describes no run: epochs cannot be right"):
        Run.read({k: v for k, v in what.description.items() if k != "epochs"})


def test_noise_by_sigma_has_no_rho_and_climbs_where_it_is_told():
    what = Run(optimizer="rwp:sigma=0.01", perturb_on="norms")
    assert "rho" not in what.description
    assert what.description["perturb_on"] == "norms"


def test_addresses_stay():
    assert Run().key == "f06e86c7a6f0"
    assert Run(optimizer="sgd").folder == "digits-digits_net-rigl90-sgd-5badad151667"


def test_every_choice_can_be_read_back():
    every = [{"optimizer": name} for name in OPTIMIZERS] + [{"method": name} for name in METHODS]
    for what in [Run(**fields) for fields in every]:
        again = Run.read(json.loads(json.dumps(what.description)))
        assert again == what == Run(**what.written())
        assert again.optimizer.settings == what.optimizer.settings == {}
        assert again.method.settings == what.method.settings == {}


OWN = """
import torch
from torch import nn
from zosam import RigL, SAM, ZOSAM, schedules
from zosam.lab import data as ours

class Climb(SAM):
    def __init__(self, base, rho=0.07, *, half: bool = False):
        super().__init__(base, rho)
        if half and rho < 0.01:
            raise ValueError("half of so little is nothing")

def straight(optimizer):
    return [optimizer.draw()]

class Straight(ZOSAM):
    def __init__(self, base, rho=schedules.Linear(0, 0.1, 9), *, probe=straight, seed=0):
        super().__init__(base, rho, probe=probe, seed=seed)

class Masks(RigL):
    pass

def data(batch_size, seed, few: int = 256):
    source = ours.digits(batch_size, seed)
    train = ours.Tensors(source.train.x[:few], source.train.y[:few], batch_size, True)
    return ours.Data(train, source.test, 10, (1, 8, 8))

def net(num_classes, width: int = 16):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes))
"""


def test_everything_may_be_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    fields = {"model": "mine_own:net:width=24", "data": "mine_own:data", "optimizer": "mine_own:Climb"}
    description = Run(epochs=1, batch_size=64).description | fields | {"method": "mine_own:Masks:every=2"}
    assert Run.read(description | {"rho": 0.07}).model.name == "mine_own:net"
    assert "mine_own" not in sys.modules  # a description does not make us import code
    what = Run(**fields, method="mine_own:Masks:every=2", epochs=1, sparsity=0.5)
    assert what.description["rho"] == 0.07
    assert what == Run(**fields | {"model": "mine_own:net:width=24", "optimizer": "mine_own:Climb:half=false"},
                       method="mine_own:Masks:every=2", epochs=1, sparsity=0.5)  # fmt: skip
    record = run(what, tmp_path / "runs")
    assert record.last["step"] == 4
    assert record.last["sparsity"] == pytest.approx(0.5, abs=0.01)
    straight = Run(**fields | {"optimizer": "mine_own:Straight"}, method="dense", epochs=1)
    assert straight.description["optimizer"] == "mine_own:Straight:probe='<function straight>'"  # in every process
    assert "rho" not in straight.description  # the default is no number, and the code's own
    assert Run.read(straight.description) == straight == finished(run(straight, tmp_path / "runs").path).run
    with pytest.raises(ValueError, match="half of so little"):
        Run(**fields | {"optimizer": "mine_own:Climb:half=true"}, rho=0.001)
    with pytest.raises(ValueError, match="width must be a whole number"):
        Run(model="mine_own:net:width=wide")
    with pytest.raises(ValueError, match="no network is mine_own:net:width=-3"):
        Run(model="mine_own:net:width=-3")
    with pytest.raises(ValueError, match="needs in_features"):
        Run(optimizer="torch.nn:Linear:out_features=3")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "zosma"}, "did you mean 'zosam'"),
        ({"method": "rigel"}, "did you mean 'rigl'"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"optimizer": "looksam:kk=3"}, "no setting 'kk': did you mean 'k'"),
        ({"method": "set:evry=3"}, "did you mean 'every'"),
        ({"method": "set:every"}, "expected key=value"),
        ({"method": "dense:every=1"}, "it takes none"),
        ({"optimizer": "looksam:k=2.5"}, "whole number"),
        ({"optimizer": "looksam:alpha=much"}, "must be a number"),
        ({"model": "resnet23"}, "did you mean 'resnet32'"),
        ({"sparsity": 1.0}, "below 1"),
        ({"sparsity": -0.1}, "at least 0"),
        ({"rho": -1.0}, "rho must be 0 or more"),
        ({"epochs": 0}, "epochs must be 1 or more"),
        ({"lr": float("nan")}, "lr must be"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"label_smoothing": 1.0}, "below 1"),
        ({"base": "adam"}, "did you mean 'adamw'"),
        ({"base": "adamw", "momentum": 1.5}, "momentum must be at least 0 and below 1"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"rho": "late:0.9,-0.1"}, "rho is a length, 0 or more"),
        ({"rho": "linear:0.1,-0.1"}, "end is a length"),
        ({"method": "rigl:budget=erkk"}, "did you mean 'erk'"),
        ({"method": "rigl:pattern=blok"}, "pattern must be N:M"),
        ({"method": "rigl:pattern=2:4"}, "pass sparsity=0.5"),
        ({"method": "rigl:growth_gradient=theta"}, "ZOSAM takes none there"),
        ({"method": "rigl:min_per_layer=2"}, "has no effect where layers do not compete"),
        ({"method": "mest:soft=true,drop_fraction=0.3"}, "has no effect with soft=True"),
        ({"optimizer": "rwp:beta=0.5"}, "beta=0.5 has no effect without eta"),
        ({"optimizer": "looksam:k=1,alpha=0.5"}, "alpha=0.5 has no effect"),
        ({"optimizer": "zosam:decide=central(radius=-1)"}, r"decide=central\(radius=-1\): radius must be above 0"),
        ({"schedule": "constant:per_epoch=true"}, "per_epoch has no effect"),
        ({"schedule": "steps:at=(5,10),per_epoch=true"}, "per_epoch has no effect"),
        ({"schedule": "steps:at=(10,5)"}, "one after the other"),
        ({"schedule": "steps:factor=1"}, "factor must be above 0, and not 1"),
        ({"method": "rigl:drop_fraction=7"}, "drop_fraction must be above 0 and at most 1, not 7"),
        ({"method": "rigl:growth_gradient=thta"}, "growth_gradient must be"),
        ({"method": "set:every=0"}, "every must be 1 or more"),
        ({"method": "set:every=0", "sparsity": 0.0}, "every must be 1 or more"),
        ({"method": "lth:levels=0"}, "levels must be 1 or more"),
        ({"optimizer": "sam:batch_fraction=0.3", "rho": 0.0}, "batch_fraction must be"),
        ({"optimizer": "msam", "momentum": 0.0}, "momentum"),
        ({"optimizer": "looksam:k=0"}, "k must be 1 or more"),
        ({"optimizer": "esam:beta=2"}, "beta must be above 0"),
        ({"model": "deit_tiny:image_size=33"}, "image_size|divisible|whole number of patches"),
        ({"model": "wrn:depth=11"}, "depth"),
        ({"model": "wrn:depth=600000004"}, "absurdly large"),
        ({"model": "resnet20:stem_stride=two"}, "whole number"),
        ({"model": "resnet20:width=0"}, "whole numbers must be 1 or more"),
        ({"data": "cifar10:validaton=3"}, "did you mean 'validation'"),
        ({"data": "cifar10:validation=60000"}, "validation must be 0 to 49999 pictures"),
        ({"data": "cifar100:validation=5000,train=45001"}, "train must be 1 to 45000 pictures"),
        ({"data": "cifar10:augment=false,cutout=8"}, "augment is false: leave out one or the other"),
        ({"data": "cifar10:cutout=33"}, "cutout must be 0 to 32 pixels"),
        ({"data": "cifar10c:corruption=fogg"}, "did you mean 'fog'"),
        ({"data": "cifar10c:severity=6"}, "severity must be 1 to 5"),
        ({"data": "imagenet:augment=dait"}, "did you mean 'deit'"),
        ({"data": "folder:image_size=0"}, "image_size must be 1 to 4,096 pixels"),
        ({"schedule": "cosine:warmup_lr=0.01"}, "has no effect without a warm-up"),
        ({"schedule": "cosine:minimum=0.1"}, "minimum must be below the learning rate"),
        ({"schedule": "cosine:per_epoch=true", "epochs": 1}, "per_epoch .* one epoch"),
        ({"data": "cifar10:validation=5000,train=45000"}, "train=45000 is all that there is: leave it out"),
        ({"batch_size": 1438}, "batch_size must be at most 1,437, all that digits has to train on, not 1,438"),
        ({"model": "deit_tiny:drop_path=1"}, "drop_path must be at least 0 and below 1, not 1"),
        ({"optimizer": 3}, "optimizer must be text"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Run(**wrong)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "dense", "sparsity": 0.5}, "sparsity=0.5 has no effect, for dense has no masks: leave it out"),
        ({"optimizer": "sgd", "rho": 0.1}, "rho=0.1 has no effect, for sgd perturbs nothing: leave it out"),
        ({"optimizer": "sgd", "rho": "late:0.9,0.1"}, "rho=late:.* has no effect"),
        ({"optimizer": "sgd", "perturb_on": "norms"}, "perturb_on=norms has no effect"),
        ({"weight_decay": 0.0, "weight_decay_on": "weights"}, "weight_decay_on=weights has no effect"),
    ],
)
def test_what_has_no_effect_is_not_trained(fields, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(Run(**fields), tmp_path / "runs")
    assert not any(tmp_path.iterdir())
    plain = Run(**fields).stripped()
    assert plain == Run(**fields)
    assert plain.written() == {k: v for k, v in Run(**fields).written().items() if k not in plain.idle}


def test_what_is_fine_is_not_made_again_for_another_seed(monkeypatch):
    made, make = [], assemble.build_optimizer
    monkeypatch.setattr(assemble, "build_optimizer", lambda what, *more: made.append(what.lr) or make(what, *more))
    for fields in ({"lr": 0.0123}, {"lr": 0.0123, "seed": 5}, {"lr": 0.0124}, {"lr": 0.0123, "model": "resnet20"}):
        Run(**fields)
    assert made == [0.0123, 0.0124]
    for _ in range(2):
        with pytest.raises(ValueError, match="drop_fraction must be"):
            Run(lr=0.0123, method="rigl:drop_fraction=7")


def test_nothing_is_loaded_to_refuse_nonsense(forked):
    child = forked("""
import time
for name in [name for name in sys.modules if name.partition(".")[0] in {"sklearn", "zosam"}]:
    del sys.modules[name]
from zosam.lab.run import Run
Run(data="cifar100:train=7", model="resnet50", batch_size=7)
for wrong in ({"method": "rigl:drop_fraction=7"}, {"optimizer": "zosam:scale=foo"}):
    began = time.process_time()
    try:
        Run(**wrong)
    except ValueError:
        assert time.process_time() - began < 0.2, "it took seconds"
    else:
        raise SystemExit(f"{wrong} was not refused")
assert "sklearn" not in sys.modules
""")
    assert child.ends() == 0, child.says()


def test_a_finished_run_is_not_done_again(tmp_path):
    first = run(SMALL, tmp_path)
    ticks = []
    second = run(SMALL, tmp_path, tick=lambda done, of: ticks.append(done))
    assert second.epochs == first.epochs
    assert not ticks
    assert first.last["sparsity"] == pytest.approx(0.9, abs=1e-3)
    model = second.load()
    assert equal(dict(model.state_dict()), weights(first.path))


def test_the_callers_random_stream_is_left_alone(tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    run(dataclasses.replace(SMALL, epochs=1), tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


def test_diagnostics_go_into_the_record(tmp_path):
    last = run(dataclasses.replace(SMALL, epochs=1, diagnostics=True, method="set"), tmp_path).last
    assert 0 < last["relative_length"] < 0.1
    assert last["loss_up"] != last["loss_down"]
    assert -1 <= last["cosine"] <= 1


class Stop(Exception):
    pass


def interrupted(what, root, at, **where):
    """Train, and break off after `at` steps."""

    def tick(done, of):
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        run(what, root, tick=tick, **where)


@pytest.mark.parametrize(
    "what",
    [
        SMALL,
        dataclasses.replace(SMALL, optimizer="looksam:k=3", base="adamw", lr=1e-3),
        dataclasses.replace(SMALL, method="snip", optimizer="sam"),
        dataclasses.replace(SMALL, method="dense", optimizer="sgd", rho=None),
        dataclasses.replace(SMALL, epochs=2, method="lth:levels=2,rewind=2", optimizer="sgd", rho=None),
    ],
    ids=lambda w: f"{w.method}-{w.optimizer}",
)
@pytest.mark.parametrize("fast", [False, True], ids=["", "accelerated"])
def test_a_run_that_was_broken_off_goes_on_bit_for_bit(tmp_path, what, fast):
    if fast and what is not SMALL:
        pytest.skip("one is enough")
    whole = run(what, tmp_path / "whole", accelerate=fast)
    interrupted(what, tmp_path / "broken", at=8, accelerate=fast)
    interrupted(what, tmp_path / "broken", at=15, accelerate=fast)
    resumed = run(what, tmp_path / "broken", accelerate=fast)
    assert equal(weights(whole.path), weights(resumed.path))
    assert [e["test_loss"] for e in whole.epochs] == [e["test_loss"] for e in resumed.epochs]
    assert whole.last["forward"] == resumed.last["forward"]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    whole = run(SMALL, tmp_path / "whole")
    interrupted(SMALL, tmp_path / "broken", at=15)
    content = checkpoints.of(tmp_path / "broken" / SMALL.folder)[-1].read_bytes()
    half = len(content) // 2
    for damaged in (content[:half], content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :], b""):
        shutil.copytree(tmp_path / "broken", copy := tmp_path / hashlib.sha256(damaged).hexdigest())
        checkpoints.of(copy / SMALL.folder)[-1].write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged"):
            resumed = run(SMALL, copy)
        assert equal(weights(whole.path), weights(resumed.path))


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    path = tmp_path / SMALL.folder
    files.write_json(path / "run.json", {"run": dataclasses.replace(SMALL, lr=0.7).description})
    with pytest.raises(ValueError, match=r"another configuration \(lr 0\.7, not 0\.1\)"):
        run(SMALL, tmp_path)
    (path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        run(SMALL, tmp_path)


def test_where_to_train_is_not_what_to_train(tmp_path):
    with pytest.raises(ValueError, match="no argument of run is called 'acelerate': did you mean 'accelerate'"):
        run(SMALL, tmp_path, acelerate=True)
    interrupted(SMALL, tmp_path, at=8, accelerate=True)
    with pytest.warns(UserWarning, match="begun with other kernels"):
        assert run(SMALL, tmp_path).last["epoch"] == 3


def test_what_failed_before_there_was_anything_to_keep_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="zosam data get cifar10"):
        run(dataclasses.replace(SMALL, data="cifar10"), tmp_path / "runs", data_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    interrupted(SMALL, tmp_path / "runs", at=0)
    assert not list((tmp_path / "runs").iterdir())  # that one was not ours
    interrupted(SMALL, tmp_path / "runs", at=8)  # after the first checkpoint
    kept = sorted(p.name for p in (tmp_path / "runs" / SMALL.folder).iterdir())
    interrupted(SMALL, tmp_path / "runs", at=8)  # it was there before
    assert sorted(p.name for p in (tmp_path / "runs" / SMALL.folder).iterdir()) == kept


def test_two_processes_do_not_train_the_same_run(tmp_path):
    with locked(tmp_path / SMALL.folder), pytest.raises(Busy, match="another process"):
        run(SMALL, tmp_path)
    run(dataclasses.replace(SMALL, epochs=1), tmp_path)  # the lock is gone


def test_a_folder_that_is_moved_while_it_trains(tmp_path):
    def move(done, of):
        if done == 8:
            (tmp_path / SMALL.folder).rename(tmp_path / "moved" / SMALL.folder)

    (tmp_path / "moved").mkdir()
    with pytest.raises(files.NotWritten, match="was moved or removed"):
        run(SMALL, tmp_path, tick=move)
    assert not (tmp_path / SMALL.folder).exists()  # no second half of a run
    assert checkpoints.of(tmp_path / "moved" / SMALL.folder)
    assert equal(weights(run(SMALL, tmp_path / "moved").path), weights(run(SMALL, tmp_path / "whole").path))


def test_a_checkpoint_holds_data_only(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, ("true",))

    with pytest.raises(TypeError, match="tensors, numbers, text and containers of them, not Evil"):
        checkpoints.save(tmp_path, 1, {"a": Evil()})
    assert not list(tmp_path.iterdir())


def test_an_unfinished_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "f"
    files.write(target, b"old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def zosam_train(out, **popen):
    command = [sys.executable, "-m", "zosam", "train", "--out", str(out)]
    for field, value in SMALL.written().items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, **popen)


@pytest.mark.skipif(not os.environ.get("ZOSAM_LONG"), reason="make test-long: tests/lab/faults kills every time")
def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path):
    run(SMALL, tmp_path / "whole")
    began = time.monotonic()
    kills = 0
    chance = random.Random(0)
    while kills < 2:
        process = zosam_train(tmp_path / "killed")
        progress = tmp_path / "killed" / SMALL.folder / "run.json"
        while not progress.exists() and process.poll() is None:
            time.sleep(0.02)  # it has begun
        time.sleep(chance.uniform(0.1, 1.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        if process.returncode == 0 or time.monotonic() - began > 90:
            break
    assert kills
    assert zosam_train(tmp_path / "killed").wait(120) == 0
    assert equal(weights(tmp_path / "whole" / SMALL.folder), weights(tmp_path / "killed" / SMALL.folder))
