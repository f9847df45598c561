"""The recipe of a run: every field of it has the effect that it names, and survives a break."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from zosam.lab import assemble
from zosam.lab.assemble import build_base, build_optimizer, load_data
from zosam.lab.device import placed
from zosam.lab.models import MODELS, build
from zosam.lab.run import Run, run
from zosam.optim import Central

NET = "digits_net:width=4"
SMALL = Run(model=NET, epochs=3, batch_size=256, method="rigl:every=3", optimizer="sam", sparsity=0.8)
FULL = dataclasses.replace(
    SMALL, schedule="cosine:warmup=1,warmup_lr=0.01,minimum=0.01,cooldown=1", nesterov=True, weight_decay_on="weights",
    clip=0.5, label_smoothing=0.1, ema=0.9, rho="linear:start=0.1,end=0.0",
)  # fmt: skip


class Stop(Exception):
    pass


def broken(what, root, at):
    def tick(done, of):
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        run(what, root, tick=tick)


def flat(num_classes):
    """Without convolutions, which take seconds in fp16 on a CPU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, num_classes))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_with_every_field_on_a_broken_run_goes_on_bit_for_bit(monkeypatch, tmp_path, precision):
    monkeypatch.setitem(MODELS, "flat", flat)
    what = dataclasses.replace(FULL, precision=precision, model="flat")
    whole = run(what, tmp_path / "whole")
    broken(what, tmp_path / "broken", at=8)
    broken(what, tmp_path / "broken", at=15)
    resumed = run(what, tmp_path / "broken")
    for file in ("model.safetensors", "ema.safetensors"):
        a, b = load_file(whole.path / file), load_file(resumed.path / file)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[n], b[n]) for n in a)
    assert [e["ema_test_loss"] for e in whole.epochs] == [e["ema_test_loss"] for e in resumed.epochs]
    assert whole.last["train_loss"] < whole.epochs[0]["train_loss"]


def test_a_whole_run_written_out(tmp_path):
    """Plain torch, step by step: warm-up and cosine, Nesterov, decay on weights only, clipping, smoothing, average."""
    what = dataclasses.replace(FULL, method="dense", optimizer="sgd", rho=None, sparsity=0)
    record = run(what, tmp_path)
    torch.manual_seed(what.seed)
    source = load_data(what)
    model = placed(build(what.model, source.classes), torch.device("cpu"))
    names = {p: n for n, p in model.named_parameters()}
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    assert {names[p].rpartition(".")[2] for p in others} == {"weight", "bias"}
    optimizer = torch.optim.SGD(
        [{"params": weights}, {"params": others, "weight_decay": 0}], lr=0.1, momentum=0.9, weight_decay=5e-4,
        nesterov=True,
    )  # fmt: skip
    average, steps = None, len(source.train)
    for step in range(3 * steps):
        at = step / steps
        if step % steps == 0:
            batches = source.train.epoch(step // steps)
        lr = 0.01 + 0.09 * at if at < 1 else 0.01 if at >= 2 else 0.01 + 0.09 * (1 + math.cos(math.pi * at / 2)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.train()
        x, y = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        nn.utils.clip_grad_norm_([*weights, *others], 0.5)
        optimizer.step()
        state = copy.deepcopy(model.state_dict())
        if average is None:
            average = state
        for name, tensor in state.items():
            average[name] = average[name].lerp(tensor, 0.1) if tensor.is_floating_point() else tensor
    for file, expected in (("model.safetensors", model.state_dict()), ("ema.safetensors", average)):
        found = load_file(record.path / file)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_average_is_as_sparse_as_the_network(monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, "flat", flat)
    for method in ("rigl:every=3", "lth:levels=2,rewind=2"):
        record = run(dataclasses.replace(SMALL, model="flat", method=method, ema=0.9), tmp_path)
        average = load_file(record.path / "ema.safetensors")
        for name, mask in record.masks().items():
            assert torch.count_nonzero(average[name][~mask]) == 0
            assert torch.count_nonzero(average[name][mask]) > 0
        assert 0 < record.last["ema_test_accuracy"] <= 1


def test_after_a_rewind_the_average_begins_anew(tmp_path):
    """With a decay of almost 1 it stays where it began: at the first step of the last level."""
    what = dataclasses.replace(SMALL, method="lth:levels=2,rewind=2", optimizer="sgd", epochs=2, ema=1 - 1e-12, lr=0.5)
    seen = []
    usual = assemble.build_optimizer

    def spy(*arguments):
        optimizer = usual(*arguments)
        weight = optimizer.param_groups[0]["params"][0]
        optimizer.base.register_step_post_hook(lambda *_: seen.append(weight.detach().clone()))
        return optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zosam.lab.assemble.build_optimizer", spy)
        record = run(what, tmp_path)
    average = load_file(record.path / "ema.safetensors")
    name, mask = next(iter(record.masks().items()))
    assert len(seen) == 12 + 10 + 10
    near = [float((average[name] - w * mask).abs().max()) < 1e-6 for w in seen]
    assert [step for step, is_near in enumerate(near) if is_near] == [22]


def test_length_stretches_epochs_schedule_and_mask_updates():
    short = Run(epochs=4, schedule="steps:at=(2,3),warmup=1", method="rigl:until=0.5,every=10")
    long = dataclasses.replace(short, length=5)
    assert long == Run(epochs=20, schedule="steps:at=(10,15),warmup=5", method="rigl:until=0.5,every=10")
    assert long.length == 1
    assert dataclasses.replace(long, seed=1).epochs == 20  # and is stretched once only
    assert Run(epochs=4, length=2) == Run(epochs=8)
    assert Run(epochs=15, length=0.5).epochs == 7
    assert Run(method="lth:rewind=10", length=3).method == Run(method="lth:rewind=30").method
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="length must be"):
            Run(length=wrong)


def test_mask_updates_end_later_in_a_longer_training():
    for length in (1, 5):
        what = Run(model=NET, epochs=2, length=length, batch_size=256)
        source = load_data(what)
        steps = what.epochs * len(source.train)
        model = build(what.model, source.classes)
        sparse = assemble.build_method(what, model, build_optimizer(what, model, steps), source, steps)
        assert sparse.end == int(0.75 * 2 * length * len(source.train))


def test_rho_as_a_schedule(tmp_path):
    what = dataclasses.replace(SMALL, rho="linear:start=0.2,end=0.0")
    assert what == dataclasses.replace(SMALL, rho="linear:0.2,0") != SMALL
    assert what.description["rho"] == "linear:end=0,start=0.2"
    assert Run.read(what.description) == what
    optimizer = build_optimizer(what, nn.Linear(2, 2), steps=10)
    assert [optimizer.schedule(step, 0.1) for step in (0, 5, 10)] == pytest.approx([0.2, 0.1, 0.0])
    assert Run(rho="0.3") == Run(rho=0.3)
    assert Run(rho="own") == Run(rho=None) == Run()
    for wrong, says in (
        (-1, "rho must be 0 or more"),
        ("linaer:0,1", "did you mean 'linear'"),
        ("linear:start=1", "linear needs end"),
        ("linear:steps=3,start=1,end=0", "steps is set by the run itself"),
        (True, "rho must be"),
    ):
        with pytest.raises(ValueError, match=says):
            Run(rho=wrong)


def test_a_rho_schedule_goes_back_where_the_training_does(tmp_path):
    what = dataclasses.replace(SMALL, method="lth:levels=2,rewind=2", rho="linear:0.2,0.0", epochs=2)
    seen = []
    usual = assemble.build_optimizer

    def spy(*arguments):
        optimizer = usual(*arguments)
        optimizer.base.register_step_pre_hook(lambda *_: seen.append(optimizer.schedule(optimizer.steps, 0.1)))
        return optimizer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zosam.lab.assemble.build_optimizer", spy)
        run(what, tmp_path)
    steps = 2 * len(load_data(what).train)
    line = [0.2 * (1 - step / steps) for step in range(steps)]
    assert seen == pytest.approx([*line, *line[2:], *line[2:]])  # dense, and two levels


def test_late_rho_from_the_command_line():
    what = Run(rho="late:0.9,0.1")
    optimizer = build_optimizer(what, nn.Linear(2, 2), steps=100)
    assert [optimizer.schedule(step, 0.1) for step in (0, 89, 90, 99)] == [0, 0, 0.1, 0.1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_probes_go_far_enough_to_be_seen(precision):
    def decides(optimizer, precision):
        return build_optimizer(Run(optimizer=optimizer, precision=precision), nn.Linear(2, 2), 10).decide

    assert decides("zosam", "fp32") == Central()
    assert decides("zosam", precision) == Central(delta=3e-3)
    assert decides("zosam:decide=central(batch_fraction=1/8)", precision) == Central(delta=3e-3, batch_fraction=1 / 8)
    assert decides("zosam:decide=central(radius=0.5)", precision) == Central(radius=0.5)
    for near in ("pair", "worst"):
        with pytest.raises(ValueError, match=f"too near to each other for {precision}"):
            Run(optimizer=f"zosam:decide={near}", precision=precision)


def test_what_cannot_be_is_refused(tmp_path):
    for wrong, says in (
        ({"nesterov": True, "base": "adamw"}, "nesterov is for sgd"),
        ({"nesterov": True, "momentum": 0}, "(?i)nesterov"),
        ({"schedule": "cosine:warmup=20"}, "longer than the training"),
        ({"schedule": "steps:at=(3,99)"}, "between 0 and 15"),
        ({"schedule": "stpes"}, "did you mean 'steps'"),
        ({"clip": 0}, "clip must be above 0"),
        ({"ema": 1.0}, "ema must be"),
        ({"precision": "bf8"}, "bf16"),
        ({"weight_decay_on": "wights"}, "did you mean 'weights'"),
    ):
        with pytest.raises(ValueError, match=says):
            Run(**wrong)
    with pytest.raises(ValueError, match="kernels compute in fp32"):
        run(dataclasses.replace(SMALL, precision="bf16"), tmp_path, accelerate=True)


def test_groups_and_nesterov_of_the_base():
    model = build(Run().model, 10)
    one = build_base(Run(nesterov=True), model)
    assert [len(g["params"]) for g in one.param_groups] == [len(list(model.parameters()))]
    assert one.param_groups[0]["nesterov"]
    two = build_base(Run(weight_decay_on="weights", base="adamw"), model)
    assert [g["weight_decay"] for g in two.param_groups] == [5e-4, 0.0]
    assert sum(len(g["params"]) for g in two.param_groups) == len(list(model.parameters()))
