"""Small stand-ins for the big data sets, and the real ones where ZOSAM_DATA has them."""

import dataclasses
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from zosam.lab.data import cifar, cifar_c


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """A data folder with a CIFAR-10 of 5 x 12 + 20 pictures in the canonical files."""
    kind = dataclasses.replace(cifar.CIFAR10, rows=(12, 20))
    monkeypatch.setattr(cifar, "CIFAR10", kind)
    monkeypatch.setattr("zosam.lab.data.corrupt.archive.CIFAR10", kind)
    monkeypatch.setattr(cifar_c, "COUNT", 20)
    rng = np.random.default_rng(0)
    folder = tmp_path / kind.folder
    folder.mkdir()
    for name in (*kind.train, kind.test):
        rows = 20 if name == kind.test else 12
        content = {b"data": rng.integers(0, 256, (rows, 3072), np.uint8), b"labels": rng.integers(0, 10, rows).tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return tmp_path


@pytest.fixture
def real():
    """The real data folder, or a skip."""

    def folder(name):
        root = Path(os.environ.get("ZOSAM_DATA", "nowhere"))
        if not (root / name).is_dir():
            pytest.skip(f"ZOSAM_DATA has no {name}")
        return root

    return folder
