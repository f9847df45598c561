"""The examples that need Lightning or transformers, at their small size."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "package", "sparsity"), [
    ("lightning_digits.py", "lightning", 90),
    ("hf_vit.py", "transformers", 50),
])  # fmt: skip
def test_the_example_learns(name, package, sparsity, tmp_path):
    pytest.importorskip(package)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--small"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    zeros, accuracy = re.search(r"([\d.]+)% of the weights are zero, ([\d.]+)% accurate", done.stdout).groups()
    assert float(zeros) == pytest.approx(sparsity, abs=0.05)
    assert float(accuracy) > 60
