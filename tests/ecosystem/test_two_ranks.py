"""Two processes under Lightning and accelerate are one process on their joined micro-batches."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("two_ranks.py")
spec = importlib.util.spec_from_file_location("two_ranks", SCRIPT)
two_ranks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(two_ranks)


@pytest.mark.parametrize("name", ["gsam", "zosam"])
@pytest.mark.parametrize("trainer", ["lightning", "accelerate"])
def test_ranks_agree_with_one_another_and_with_a_loop_by_hand(trainer, name, tmp_path):
    pytest.importorskip(trainer)
    file = tmp_path / "found"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), trainer, name, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [torch.load(f"{file}.{rank}") for rank in range(2)]
    expected = two_ranks.by_hand(name)
    assert ranks[0].keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(ranks[0][key], ranks[1][key]), key
        torch.testing.assert_close(ranks[0][key], value, rtol=1e-4, atol=1e-6)
