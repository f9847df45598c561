"""The examples at their small size, each in a process and a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def run(forked, tmp_path):
    """Run an example with the words that follow its name; what it has printed."""

    def start(name, *words):
        argv = [str(EXAMPLES / name), *words]
        program = f"import runpy\nos.chdir({str(tmp_path)!r})\nsys.argv = {argv!r}\n"
        example = forked(f"{program}runpy.run_path(sys.argv[0], run_name='__main__')")
        assert example.ends() == 0, example.says()
        return example.says()

    return start


def on_two_ranks(folder, name, *words):
    command = [sys.executable, *TORCHRUN, str(EXAMPLES / name), *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ended(output):
    """Which share of the weights is zero, and the accuracy, as an example says them."""
    found = re.search(r"([\d.]+)% of the weights are zero, ([\d.]+)% accurate", output)
    assert found, output
    return float(found[1]), float(found[2])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_they_are_short(path):
    assert len(path.read_text().splitlines()) < 80
    assert path.name in (EXAMPLES / "README.md").read_text()


def test_cifar10_goes_on_where_it_stopped(run):
    words = ("cifar10.py", "--small", "--epochs", "2", "--optimizer", "zosam", "--checkpoint", "whole.pt")
    whole = run(*words)
    sparsity, accuracy = ended(whole)
    assert sparsity == pytest.approx(90, abs=0.01)
    assert accuracy > 80
    again = run(*words)  # nothing is left to do
    assert "epoch" not in again
    assert ended(again) == (sparsity, accuracy)


def test_dense_to_sparse(run):
    output = run("finetune_dense_to_sparse.py", "--small", "--epochs", "3")
    sparsity, accuracy = ended(output)
    assert sparsity == pytest.approx(90, abs=0.01)
    assert accuracy > 90
    written, dense = re.search(r"([\d,]+) bytes of ([\d,]+)", output).groups()
    assert int(written.replace(",", "")) < 0.25 * int(dense.replace(",", ""))


def test_ddp(tmp_path):
    sparsity, accuracy = ended(on_two_ranks(tmp_path, "ddp.py", "--small", "--epochs", "2"))
    assert sparsity == pytest.approx(90, abs=0.01)
    assert accuracy > 80


def test_serve(run):
    output = run("serve.py", "--small")
    assert re.search(r"batch 64: dense [\d.]+ ms, sparse [\d.]+ ms", output)
