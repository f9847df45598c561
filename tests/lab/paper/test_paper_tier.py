"""The commands of docs/paper.md that make the paper's own tables, end to end at the smallest size that there is."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from zosam.lab.data import cifar, cifar_c
from zosam.lab.data.corrupt.severities import CORRUPTIONS
from zosam.lab.paper import speed
from zosam.lab.paper.commands import table
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.table import changes, load
from zosam.lab.record import read_record
from zosam.lab.run import finished
from zosam.lab.terminal import Output
from zosam.lab.where import Where

SMALL = ("data=cifar10", "model=resnet20:width=4", "epochs=1", "batch_size=30", "schedule=constant")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """CIFAR-10 of 5 x 12 + 20 pictures and its corrupted test set, of noise."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (root / cifar.CIFAR10.folder).mkdir()
    (root / cifar_c.FOLDER).mkdir()
    for name in (*cifar.CIFAR10.train, cifar.CIFAR10.test):
        rows = 20 if name == cifar.CIFAR10.test else 12
        content = {b"data": rng.integers(0, 256, (rows, 3072), np.uint8), b"labels": rng.integers(0, 10, rows).tolist()}
        (root / cifar.CIFAR10.folder / name).write_bytes(pickle.dumps(content, protocol=2))
    for name in CORRUPTIONS:
        np.save(root / cifar_c.FOLDER / f"{name}.npy", rng.integers(0, 256, (100, 32, 32, 3), np.uint8))
    np.save(root / cifar_c.FOLDER / "labels.npy", np.tile(rng.integers(0, 10, 20), 5))
    return str(root)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(cifar, "CIFAR10", dataclasses.replace(cifar.CIFAR10, rows=(12, 20)))
    monkeypatch.setattr(cifar_c, "COUNT", 20)
    monkeypatch.setattr(speed, "ROUNDS", 1)
    monkeypatch.setattr(speed, "TURNS", 1)


@pytest.mark.parametrize(
    ("name", "only", "cells"),
    [
        ("1", "^RigL( . ZO-SAM)? / CIFAR-10 90", 2),
        ("3", "^(SGD|ZO-SAM) / 95", 2),
        ("4", "^ZO-SAM / WRN.*(CIFAR-10|images/s)$", 4),
        ("5", "^SNIP( . ZO-SAM)? /", 6),
        ("6", "^SNIP( . ZO-SAM)? / CIFAR-10 90", 2),
    ],
)
def test_a_table_of_cifar(name, only, cells, data_dir, small, tmp_path, capsys):
    chosen = {"tier": "paper", "seeds": 1, "printed_only": True, "only": only, "change": SMALL, "out": tmp_path}
    table(name, **chosen, where=Where(data_dir=data_dir), output=Output(json=True))
    shown = json.loads(capsys.readouterr().out)
    assert len([cell for cell in shown if cell["mean"] is not None]) == cells
    runs = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert len(runs) == 2
    table(name, **chosen, where=Where(data_dir=data_dir), output=Output(json=True))
    assert json.loads(capsys.readouterr().out) == shown  # nothing is trained or measured twice


def test_changes_are_read_and_told(tmp_path):
    assert changes(["epochs=1", "ema=none", "nesterov=true", "rho=late:0.9,0.1", "lr=0.5"]) == {
        "epochs": 1, "ema": None, "nesterov": True, "rho": "late:0.9,0.1", "lr": 0.5,
    }  # fmt: skip
    changed, own = load("table1", "paper", ["epochs=2"]), load("table1", "paper")
    assert {c.run.epochs for c in changed.cells} == {2}
    assert not {c.run for c in changed.cells} & {c.run for c in own.cells}
    from zosam.lab.paper.show import filled

    told = filled(changed, Book.open(tmp_path), 1, only="^SNIP / CIFAR-10 90")["note"]
    assert "Not the tier's own trainings: epochs=2." in told
    for words, says in ((["epoch=1"], "did you mean 'epochs'"), (["epochs"], "FIELD=VALUE"), (["lr=x"], "lr must be")):
        with pytest.raises(ValueError, match=says):
            load("table1", "paper", words)


@pytest.mark.skipif("ZOSAM_LONG" not in os.environ, reason="half a minute: ZOSAM_LONG=1")
def test_deit_on_two_processes_with_every_feature_killed_and_resumed(tmp_path):
    """Table 2 by torchrun: warm-up, cool-down, EMA, all of DeiT's augmentation, clipping, smoothing, bf16."""
    image = pytest.importorskip("PIL.Image")
    for split, count in (("train", 8), ("val", 2)):
        for name, colour in (("apple", (200, 30, 30)), ("sky", (30, 30, 200))):
            place = tmp_path / "flats" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                image.new("RGB", (40 + number, 40), colour).save(place / f"{number}.png")
    change = (
        "model=deit_tiny:image_size=32,drop_path=0.1", "data=folder:path=flats,image_size=32,augment=deit", "epochs=4",
        "batch_size=8", "schedule=cosine:warmup=1,warmup_lr=1e-6,minimum=1e-5,cooldown=1,per_epoch=true", "clip=1",
        "precision=bf16", "method=rigl:every=2",
    )  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "zosam", "table", "2", "--tier", "paper", "--only", "^RigL( . ZO-SAM)? / DeiT-Tiny", "--seeds", "1"]
    words += ["--printed-only", "--json", "--data-dir", str(tmp_path), "--workers", "0", "--change", *change]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(out, start=(), **more):
        return subprocess.run(
            [*command, *start, *words, "--out", str(tmp_path / out)], capture_output=True, text=True, env=alone, **more
        )

    straight = run("straight", check=True)
    assert len([cell for cell in json.loads(straight.stdout) if cell["mean"] is not None]) == 2  # one process speaks
    kill = Path(__file__).parents[2] / "lab" / "faults" / "table_and_die.py"
    words[:2] = [str(kill)]
    killed = run("killed")
    assert killed.returncode != 0
    words[:1] = ["-m", "zosam"]
    resumed = run("killed", check=True)
    for folder in (tmp_path / "straight").iterdir():
        if folder.is_dir():
            a, b = finished(folder), finished(tmp_path / "killed" / folder.name)
            assert all(a.checksums[name] == b.checksums[name] for name in ("model.safetensors", "ema.safetensors"))
            assert all(torch.equal(mask, b.masks()[name]) for name, mask in a.masks().items())
            assert read_record(a.path)["made_with"]["processes"] == 2
    assert json.loads(resumed.stdout)[0].keys() == json.loads(straight.stdout)[0].keys()
