"""Shared by the tests of the laboratory: folders of runs that were never trained, whose records say what one wants."""

from __future__ import annotations

import pytest

from zosam.lab.claim import claim
from zosam.lab.record import Record, write

EPOCH = {
    "epoch": 1, "step": 6, "train_loss": 0.5, "test_loss": 1.0, "test_accuracy": 0.5, "sparsity": 0.9, "forward": 12,
    "backward": 6, "seconds": 2.0, "cpu_seconds": 2.0, "images_per_second": 100.0,
}  # fmt: skip


def _shelve(root, what, status="finished", epochs=1, **figures):
    """The folder of `what`, after so many epochs; None: before the first has ended."""
    path = root / what.folder
    path.mkdir(parents=True)
    claim(path, what)
    if epochs:
        told = [EPOCH | {"epoch": n, "step": 6 * n} | figures for n in range(1, epochs + 1)]
        write(Record(what, path, told, 10), status)
    return path


@pytest.fixture(scope="session")
def shelve():
    return _shelve
