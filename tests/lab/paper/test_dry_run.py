"""What runs would take: the arithmetic by hand, the disk against a real folder, and the command."""

from __future__ import annotations

import dataclasses
import json

import pytest

from zosam.lab.paper import commands, dry_run
from zosam.lab.paper.dry_run import Kind, Probe, plans, probe
from zosam.lab.paper.show import chosen
from zosam.lab.paper.sweep import with_seeds
from zosam.lab.paper.table import load
from zosam.lab.run import Run, run
from zosam.lab.terminal import Output
from zosam.lab.where import Where

SMALL = Run(model="digits_net:width=4", epochs=2, batch_size=256, method="set", optimizer="sam")
BY_HAND = Probe(
    per_picture=0.001,
    timed=64,
    train=36_000,
    test=9_000,
    checkpoint=1000,
    weights=400,
    network=500,
    prunable=80,
    operations=2e6,
)


def test_hours_by_hand():
    """36 seconds of steps in an epoch, and a quarter as many pictures in its test, a third of the price each: 39 s."""
    sgd = Run(epochs=10, optimizer="sgd", method="dense")
    assert BY_HAND.hours(sgd) == pytest.approx(390 / 3600)
    sam = dataclasses.replace(sgd, optimizer="sam")
    assert BY_HAND.hours(sam) == pytest.approx((2 * 360 + 30) / 3600)
    zosam = dataclasses.replace(sgd, optimizer="zosam")  # three forwards and a backward, which is two
    assert BY_HAND.hours(zosam) == pytest.approx((5 / 3 * 360 + 30) / 3600)
    assert BY_HAND.hours(dataclasses.replace(sgd, ema=0.9)) == pytest.approx(420 / 3600)  # the average is tested too
    tickets = dataclasses.replace(sgd, method="lth:levels=3,rewind=0")
    assert BY_HAND.hours(tickets) == pytest.approx(4 * BY_HAND.hours(sgd))


def test_operations_by_hand():
    """Stem, two blocks of 32 channels at 8 x 8, one to 64 at 4 x 4 with its shortcut, and the classifier."""
    sgd = Run(epochs=10, optimizer="sgd", method="dense")
    assert BY_HAND.pictures(sgd) == 10 * (3 * 36_000 + 9_000)
    assert BY_HAND.pictures(dataclasses.replace(sgd, optimizer="sam", ema=0.9)) == 10 * (6 * 36_000 + 2 * 9_000)
    last = 16 * (9 * 32 * 64 + 9 * 64 * 64 + 32 * 64)
    assert probe(Run(batch_size=64), Where()).operations == 2 * (64 * 9 * 32 + 4 * 64 * 9 * 32 * 32 + last + 64 * 10)


def test_disk_by_hand():
    sgd = Run(optimizer="sgd", method="dense")
    assert BY_HAND.disk(sgd) == 2 * 1000 + 500
    assert BY_HAND.disk(dataclasses.replace(sgd, method="set", ema=0.9)) == 2 * 1080 + 2 * 500 + 10
    assert BY_HAND.disk(dataclasses.replace(sgd, optimizer="sam")) == 2 * 1400 + 500


def test_disk_against_a_real_folder(tmp_path):
    for what in (SMALL, dataclasses.replace(SMALL, ema=0.9, base="adamw", lr=1e-3, optimizer="sgd")):
        record = run(what, tmp_path)
        left = sum(f.stat().st_size for f in record.path.rglob("*") if f.is_file())
        expected = probe(what, Where()).disk(what)
        assert 0.8 * left < expected < 2 * left


def test_ten_steps_of_each_kind():
    runs = [*with_seeds([SMALL], 3), dataclasses.replace(SMALL, precision="bf16")]
    first, second = plans(runs, Where())
    assert (first.runs, second.runs) == (3, 1)
    assert (first.kind, second.kind.precision) == (Kind.of(SMALL, Where()), "bf16")
    assert 0 < first.timed <= 256  # fewer where steps are slow
    assert 0 < first.seconds_per_step < 30
    assert first.hours > 0
    # SAM takes two such steps, 6 of them in an epoch of 1,437 pictures, and tests 360
    steps = 2 * 2 * 6 + 2 * 360 / 256 / 3
    assert first.hours == pytest.approx(3 * first.seconds_per_step * steps / 3600, rel=0.1)


def test_where_data_are_missing_noise_stands_in_for_them(tmp_path, capsys, monkeypatch):
    """ImageNet is counted by its known size: 300 epochs as of dense DeiT-Tiny, tested with its average after each."""
    monkeypatch.setattr(dry_run, "STEPS", 2)
    change = ("model=resnet20:width=4", "data=imagenet:image_size=32", "batch_size=8")
    chosen = {"seeds": 1, "only": "^Dense / DeiT-Tiny", "dry_run": True, "out": tmp_path, "change": change}
    commands.table("2", "paper", **chosen, where=Where(data_dir=str(tmp_path)), output=Output(json=True))
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["noise"]
    assert plan["timed"] == 8  # a whole batch
    one = probe(
        Run(model="resnet20:width=4", data="imagenet:image_size=32", batch_size=8), Where(data_dir=str(tmp_path))
    )
    assert plan["operations"] == pytest.approx(one.operations * 300 * (3 * 1_281_167 + 2 * 50_000))
    commands.table("2", "paper", **chosen, where=Where(data_dir=str(tmp_path)))
    assert "On noise: the data are not there." in " ".join(capsys.readouterr().out.split())
    assert not list(tmp_path.iterdir())


def test_a_folder_of_unknown_size_must_be_there(tmp_path, capsys):
    commands.table("1", "paper", seeds=1, only="^MEST / CIFAR-100 90", dry_run=True, out=tmp_path,
                   change=("data=folder:path=flowers",), where=Where(data_dir=str(tmp_path)))  # fmt: skip
    said = " ".join(capsys.readouterr().out.split())
    assert "1 runs, 0 finished, 1 missing" in said
    assert "Not timed:" in said
    assert "flowers" in said


def test_on_the_kernels_masks_are_timed(monkeypatch):
    """Their kinds are told apart, and what is timed runs on the kernels."""
    seen = []
    monkeypatch.setattr(
        "zosam.lab.assemble.accelerate", lambda model, sparse, x: seen.append(round(sparse.sparsity, 2))
    )
    runs = [dataclasses.replace(SMALL, sparsity=s) for s in (0.8, 0.9)]
    dense = dataclasses.replace(SMALL, method="dense")
    assert [plan.runs for plan in plans([*runs, dense, runs[1]], Where(accelerate=True))] == [1, 2, 1]
    assert seen == [0.8, 0.9]
    assert [plan.runs for plan in plans([*runs, dense], Where())] == [3]


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dry_run, "STEPS", 2)
    commands.table("1", "tiny", seeds=1, only="SNIP", printed_only=True, dry_run=True, out=tmp_path)
    said = capsys.readouterr().out
    assert "table1, tier tiny: 6 runs, 0 finished, 6 missing" in said
    assert "digits_net on digits, batches of 64, fp32" in said
    assert "on four" in said
    assert not list(tmp_path.iterdir())
    commands.table("1", "tiny", seeds=1, only="SNIP", dry_run=True, out=tmp_path, output=Output(json=True))
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["runs"] > 6
    assert plan["model"] == "digits_net"
    assert plan["hours"] > 0


def test_printed_only_leaves_controls_out():
    counts = {}
    for name in ("table1", "table4"):
        table = load(name, "paper")
        for printed_only in (False, True):
            cells = chosen(table, None, printed_only)
            counts[name, printed_only] = len(with_seeds([c.run for c in cells if c.run is not None], 3))
    assert counts["table1", True] == 258
    assert counts["table1", False] > 1000
    assert counts["table4", True] < counts["table4", False]
    four = load("table4", "paper")
    shown = chosen(four, None, printed_only=True)
    assert "SGD 90 %" in {c.row for c in shown}  # what the printed rows are compared with
    assert not any("MSAM" in c.row or "1e-4" in c.row for c in shown)
    with pytest.raises(ValueError, match="finds controls only"):
        chosen(four, "MSAM", printed_only=True)
