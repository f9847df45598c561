"""One step reads as a short walk: few files, and none of a room that it has no business in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FILE = Path(__file__).parents[2] / "benchmarks" / "walk.py"


def test_a_step_between_two_updates_of_the_masks_walks_through_ten_files_besides_the_kernels(monkeypatch):
    hooks = "_global_optimizer_pre_hooks"
    monkeypatch.setattr(sys.modules["torch.optim.optimizer"], hooks, {})  # as where no optimizer was copied
    spec = importlib.util.spec_from_file_location("walk", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = {file for file in module.walk("digits_net") if not file.startswith("kernels/")}
    assert {"optim/base.py", "optim/zosam.py", "optim/perturb.py", "sparse/masks.py"} <= files
    assert len(files) <= 10
    assert not any(file.startswith("distributed/") for file in files)  # this process is alone
