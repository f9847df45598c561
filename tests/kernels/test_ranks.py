"""Two ranks on the sparse kernels take the steps of one process on the joined batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zosam.kernels import accelerate

from . import ranks


def test_two_ranks_are_one_process_on_the_joined_batch(always: None, tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in (0, 1)]
    command = [sys.executable, ranks.__file__ or ""]
    workers = [subprocess.Popen([*command, str(r), "2", str(tmp_path / "store"), str(f)]) for r, f in enumerate(files)]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    first, second = (torch.load(file) for file in files)
    for way in ranks.WAYS:
        alone = ranks.train(way)
        for name, value in alone.items():
            assert torch.equal(first[way][name], second[way][name]), (way, name)
            torch.testing.assert_close(first[way][name], value, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_the_wrapper_is_refused(masks: Any) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match=r"accelerate\(model.module"):
        accelerate(nn.DataParallel(model), masks(model, 0.5), torch.randn(2, 3))
