"""Kills, damage and full disks: a training ends with the weights of the undisturbed one, or says what to do.

ZOSAM_LONG=1 kills 30 times instead of 6.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from zosam.lab import checkpoints

from .machine import EPOCH, WHAT, Training, same

KILLS = 30 if os.environ.get("ZOSAM_LONG") else 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed training, and how long it took."""
    out = tmp_path_factory.mktemp("whole") / "runs"
    assert Training(out).ends() == 0
    began = time.monotonic()
    assert Training(out.with_name("again")).ends() == 0
    return out / WHAT.folder, time.monotonic() - began


@pytest.fixture
def disk(tmp_path):
    """A small disk of its own, if we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(path):
    """Write until there is no space, to the last block."""
    with path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


def cut(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size))


def flip(path, chance):
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def delete(path, chance):
    path.unlink()


def damage(folder: Path, chance: random.Random) -> None:
    """Something that a crash, a bad disk or a careless user does to a run's folder."""
    there = checkpoints.of(folder)
    records = [p for p in (folder / "record.json", folder / "model.safetensors") if p.exists() and p.stat().st_size]
    for path in there[-1:] if chance.random() < 0.6 else there if chance.random() < 0.2 else ():
        chance.choice((cut, flip, delete))(path, chance) if path.stat().st_size else None
    for path in records if chance.random() < 0.3 else ():
        chance.choice((cut, flip, delete))(path, chance)
    if chance.random() < 0.5 and not (folder / "record.json").exists():  # where all is done nobody cleans up
        (folder / f".checkpoint-000000099.pt.{chance.randrange(1, 9999)}").write_bytes(b"zosam checkpoint 2\nhalf")


def test_killed_at_random_moments_with_damage_in_between(whole, tmp_path):
    reference, length = whole
    chance, kills, lap = random.Random(1), 0, 0
    while kills < KILLS:
        lap += 1
        out = tmp_path / f"lap {lap}"
        while True:
            training = Training(out)
            training.process.join(chance.uniform(0, length) if kills < KILLS else 120)
            if training.process.is_alive():
                kills += 1
                if chance.random() < 0.3:  # a notice before, as of a machine that is taken away
                    assert training.stop(signal.SIGTERM) in (0, 75, -signal.SIGTERM), training.says()
                else:
                    training.stop(signal.SIGKILL)
            code = training.ends()
            assert "Traceback" not in training.says()
            if code == 0:
                break
            assert code in (75, -signal.SIGKILL, -signal.SIGTERM), training.says()
            if training.folder.exists():
                damage(training.folder, chance)
        assert same(reference, training.folder), f"after {kills} kills"
        assert not list(training.folder.glob(".*.[0-9]*"))


def test_sigterm_in_the_middle_of_an_epoch(whole, tmp_path):
    training = Training(tmp_path / "runs")
    training.wait_for(1)
    began = time.monotonic()
    code = training.stop(signal.SIGTERM)
    if code == 0:
        pytest.skip("it was done before the signal came")
    assert code == 75, training.says()
    assert time.monotonic() - began < 20
    assert "Stopped by SIGTERM after step" in training.says()
    assert "The same command goes on from there" in training.says()
    newest = checkpoints.of(training.folder)[-1]
    step = checkpoints.load(newest)["done"]
    assert f"after step {step}." in training.says()
    assert Training(tmp_path / "runs").ends() == 0
    assert same(whole[0], training.folder)


def test_sigterm_to_all_processes_that_read_pictures(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(48):
        place = tmp_path / "set" / ("val" if number % 8 < 2 else "train") / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        image.effect_noise((9, 9), 50 + number).save(place / f"{number}.png")
    data = f"folder:path={tmp_path / 'set'},image_size=8"
    what = replace(WHAT, model="tiny_net:colour", data=data, epochs=60, batch_size=4, method="dense", sparsity=0)
    before = "os.setpgrp()\nimport multiprocessing\nmultiprocessing.set_start_method('fork', force=True)"
    training = Training(tmp_path / "runs", what=what, before=before)
    training.wait_for(1)
    assert training.process.is_alive(), training.says()
    os.killpg(training.process.pid, signal.SIGTERM)
    assert training.ends() == 75, training.says()
    assert "Stopped by SIGTERM after step" in training.says()


def test_checkpoints_within_an_epoch(whole, tmp_path):
    training = Training(tmp_path / "runs", "--checkpoint-minutes", "0")  # after every step
    steps = set()
    while training.process.is_alive() and not any(step % EPOCH for step in steps):
        steps |= {int(p.stem.rpartition("-")[2]) for p in checkpoints.of(training.folder)}
    training.stop(signal.SIGKILL)
    assert any(step % EPOCH for step in steps)
    assert Training(tmp_path / "runs").ends() == 0
    assert same(whole[0], training.folder)


def test_what_was_finished_is_made_again_from_its_checkpoint(whole, tmp_path):
    training = Training(tmp_path / "runs")
    assert training.ends() == 0
    chance = random.Random(0)
    for name in ("model.safetensors", "sparse.safetensors", "record.json"):
        for hurt in (cut, flip):
            hurt(training.folder / name, chance)
            again = Training(tmp_path / "runs")
            assert again.ends() == 0, again.says()
            assert same(whole[0], training.folder)
            assert "it is made again from the last checkpoint" in again.says()


def test_a_damaged_note_of_whose_folder_it_is(whole, tmp_path):
    training = Training(tmp_path / "runs")
    training.wait_for(1)
    training.stop(signal.SIGKILL)
    (training.folder / "run.json").write_bytes(b'{"run": ')
    stopped = Training(tmp_path / "runs")
    assert stopped.ends() == 2
    assert "run.json cannot be read" in stopped.says()
    assert "remove that file to go on" in stopped.says()
    (training.folder / "run.json").unlink()
    assert Training(tmp_path / "runs").ends() == 0
    assert same(whole[0], training.folder)


def test_a_disk_too_small_is_told_before_the_first_step(disk):
    (disk / "ballast").write_bytes(bytes(1000 << 10))
    training = Training(disk / "runs")
    assert training.ends() == 2
    assert "No space left on device" in training.says()
    assert "Make room" in training.says()
    assert not checkpoints.of(training.folder)
    assert not list(training.folder.glob(".*.[0-9]*"))


def test_a_disk_that_fills_up(whole, disk):
    training = Training(disk / "runs")
    training.wait_for(1)
    os.kill(training.process.pid, signal.SIGSTOP)
    with pytest.raises(OSError, match="No space"):
        fill(disk / "ballast")
    os.kill(training.process.pid, signal.SIGCONT)
    assert training.ends() == 2, training.says()
    assert "could not be written (No space left on device); what was there before is whole" in training.says()
    assert not list(training.folder.glob(".*.[0-9]*"))
    assert checkpoints.load(checkpoints.of(training.folder)[0])["done"] >= EPOCH
    (disk / "ballast").unlink()
    assert Training(disk / "runs").ends() == 0
    assert same(whole[0], training.folder)


@pytest.mark.parametrize("after", [4, 9, 12])
def test_a_write_that_fails(whole, tmp_path, after):
    """The same without a disk of our own: from the so-manieth call on, the system says that there is no space."""
    broken = (
        "import errno, itertools\ncalls, sync = itertools.count(), os.fsync\n"
        f"def full(file):\n    if next(calls) >= {after}:\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n    sync(file)\n"
        "os.fsync = full"
    )
    training = Training(tmp_path / "runs", before=broken)
    assert training.ends() == 2, training.says()
    assert "No space left on device" in training.says()
    assert "the same command goes on" in training.says()
    assert not list(training.folder.glob(".*.[0-9]*"))
    for checkpoint in checkpoints.of(training.folder):
        checkpoints.load(checkpoint)
    assert Training(tmp_path / "runs").ends() == 0
    assert same(whole[0], training.folder)


def test_a_limit_on_the_size_of_files_is_told_before_the_first_step(tmp_path):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 13, 1 << 13))"
    training = Training(tmp_path / "runs", before=limit)
    assert training.ends() == 2, training.says()
    assert "File too large" in training.says()
    assert not checkpoints.of(training.folder)


def test_a_read_only_folder(whole, disk):
    assert Training(disk / "runs").ends() == 0
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    again = Training(disk / "runs")
    assert again.ends() == 0, again.says()  # what is finished can be looked at
    other = Training(disk / "other")
    assert other.ends() == 2
    assert "Read-only file system" in other.says()
    record = json.loads((again.folder / "record.json").read_text())
    assert record["status"] == "finished"
