"""Runs: never done twice, resumed bit for bit, and nothing is lost on bad input or a sudden end."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import safetensors.torch
import torch

from zosam import files
from zosam.lab.run import Run, run

SMALL = Run(epochs=3, method="rigl:every=5", batch_size=256, optimizer="zosam", rho=0.1)


def weights(path):
    return safetensors.torch.load_file(path / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_run_is_its_description():
    assert Run().key == Run(seed=0).key
    assert Run(seed=1).key != Run().key
    assert Run(optimizer="looksam:k=3,alpha=0.5").key == Run(optimizer=" looksam: alpha=0.5, k=3").key
    assert Run(method="dense", sparsity=0.5).sparsity == 0.0
    assert Run(rho=0).key == Run(rho=0.0).key
    assert Run(data="digits:").key == Run().key
    assert Run(optimizer="sam:batch_fraction=1/8").optimizer == "sam:batch_fraction=0.125"
    assert Run().folder.startswith("digits-rigl90-zosam-")


def test_the_address_of_a_run_never_changes():
    # worked out once by hand: sha256 of the JSON of the fields that are not at their default
    assert Run().key == "44136fa355b3"  # sha256("{}")
    assert Run(seed=1).key == "a4bbadc1c789"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "zosma"}, "did you mean 'zosam'"),
        ({"method": "rigel"}, "did you mean 'rigl'"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"optimizer": "looksam:kk=3"}, "no setting 'kk': did you mean 'k'"),
        ({"method": "set:evry=3"}, "did you mean 'every'"),
        ({"method": "set:every"}, "expected key=value"),
        ({"method": "dense:every=1"}, "takes no settings"),
        ({"optimizer": "looksam:k=2.5"}, "whole number"),
        ({"optimizer": "looksam:alpha=much"}, "must be a number"),
        ({"model": "resnet23"}, "did you mean 'resnet32'"),
        ({"sparsity": 1.0}, "below 1"),
        ({"sparsity": -0.1}, "at least 0"),
        ({"rho": -1.0}, "rho must be 0 or more"),
        ({"epochs": 0}, "epochs must be 1 or more"),
        ({"lr": float("nan")}, "lr must be"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Run(**wrong)


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


def interrupted(what, root, at):
    """Train, and break off after `at` steps."""

    def tick(done, of):
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        run(what, root, tick=tick)


@pytest.mark.parametrize(
    "what",
    [
        SMALL,
        dataclasses.replace(SMALL, optimizer="looksam:k=3", base="adamw", lr=1e-3),
        dataclasses.replace(SMALL, method="snip", optimizer="sam"),
        dataclasses.replace(SMALL, method="dense", optimizer="sgd"),
        dataclasses.replace(SMALL, accelerate=True),
        dataclasses.replace(SMALL, epochs=2, method="lth:levels=2,rewind=2", optimizer="sgd"),
    ],
    ids=lambda w: f"{w.method}-{w.optimizer}{'-accelerated' * w.accelerate}",
)
def test_a_run_that_was_broken_off_goes_on_bit_for_bit(tmp_path, what):
    whole = run(what, tmp_path / "whole")
    interrupted(what, tmp_path / "broken", at=8)
    interrupted(what, tmp_path / "broken", at=15)
    resumed = run(what, tmp_path / "broken")
    assert equal(weights(whole.path), weights(resumed.path))
    assert [e["test_loss"] for e in whole.epochs] == [e["test_loss"] for e in resumed.epochs]
    assert whole.last["forward"] == resumed.last["forward"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    whole = run(SMALL, tmp_path / "whole")
    interrupted(SMALL, tmp_path / "broken", at=15)
    newest = files.checkpoints(tmp_path / "broken" / SMALL.folder)[-1]
    content = bytearray(newest.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[len(content) // 2] ^= 1
    else:
        content = bytearray()
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged"):
        resumed = run(SMALL, tmp_path / "broken")
    assert equal(weights(whole.path), weights(resumed.path))


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    path = tmp_path / SMALL.folder
    files.write_json(path / "run.json", {"run": dataclasses.asdict(dataclasses.replace(SMALL, lr=0.7))})
    with pytest.raises(ValueError, match=r"another configuration \(lr 0\.7, not 0\.1\)"):
        run(SMALL, tmp_path)
    (path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        run(SMALL, tmp_path)


def test_two_processes_do_not_train_the_same_run(tmp_path):
    with files.locked(tmp_path / SMALL.folder), pytest.raises(files.Busy, match="another process"):
        run(SMALL, tmp_path)
    run(dataclasses.replace(SMALL, epochs=1), tmp_path)  # the lock is gone


def test_a_checkpoint_holds_data_only(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, ("true",))

    with pytest.raises(TypeError, match="tensors, numbers, text and containers of them, not Evil"):
        files.save(tmp_path, 1, {"a": Evil()})
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
    for field, value in SMALL.changed().items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, **popen)


def test_killed_at_random_moments_it_ends_with_the_same_weights(tmp_path):
    assert zosam_train(tmp_path / "whole").wait(120) == 0
    began = time.monotonic()
    kills = 0
    chance = random.Random(0)
    while kills < 3:
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


def test_ctrl_c_says_how_to_go_on(tmp_path):
    process = zosam_train(tmp_path)
    folder = tmp_path / SMALL.folder
    while not (folder / "record.json").exists() and process.poll() is None:
        time.sleep(0.02)  # written after the first checkpoint
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=120)[0].decode()
    if process.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert process.returncode == 130
    assert "goes on from the last finished epoch" in output
    assert "Traceback" not in output
    assert json.loads((folder / "record.json").read_text())["status"] == "training"
    assert run(SMALL, tmp_path).last["epoch"] == 3
