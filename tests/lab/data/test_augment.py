"""Augmentation on tensors against numpy, picture by picture."""

import numpy as np
import pytest
import torch

from zosam.lab.data.augment import Augmented, Plain, crop_flip, cutout, normalise

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def pictures(count):
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_normalise_against_float64():
    x = pictures(4)
    wanted = (x.numpy().astype(np.float64) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    np.testing.assert_allclose(normalise(x, MEAN, STD).numpy(), wanted, atol=2e-6)


@pytest.mark.parametrize(("reflect", "mode"), [(False, "constant"), (True, "reflect")])
def test_every_picture_is_a_crop_of_the_padded_one(reflect, mode):
    x = pictures(400)
    out = crop_flip(x, torch.Generator().manual_seed(1), reflect=reflect).numpy()
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode=mode)
    found = []
    for source, got in zip(padded, out, strict=True):
        matches = [
            (row, column, flip)
            for row in range(9)
            for column in range(9)
            for flip in (1, -1)
            if np.array_equal(source[:, row : row + 32, column : column + 32][:, :, ::flip], got)
        ]
        assert len(matches) == 1
        found += matches
    rows, columns, flips = zip(*found, strict=True)
    assert set(rows) == set(columns) == set(range(9))
    assert 150 < sum(flip == -1 for flip in flips) < 250
    assert len(set(found)) > 100  # each picture has its own draw


def test_cutout_zeroes_one_square():
    x = torch.ones(500, 3, 32, 32)
    hole = cutout(x, torch.Generator().manual_seed(0), 8) == 0
    assert torch.equal(hole[:, 0], hole[:, 1])
    tall, wide = hole[:, 0].any(2).sum(1), hole[:, 0].any(1).sum(1)
    assert torch.equal(hole[:, 0].sum((1, 2)), tall * wide)  # a full rectangle
    assert tall.max() == wide.max() == 8
    assert tall.min() >= 4  # the centre is always inside
    assert hole.float().mean((0, 1)).min() > 0  # every pixel is hit in some picture


def test_the_two_pipelines():
    x = pictures(6)
    generator = torch.Generator().manual_seed(3)
    out = Augmented(MEAN, STD, cutout=4)(x, generator)
    assert out.dtype == torch.float32
    assert torch.equal(out, Augmented(MEAN, STD, cutout=4)(x, torch.Generator().manual_seed(3)))
    assert (out == 0).sum() >= 6 * 3 * 4
    assert torch.equal(Plain(MEAN, STD)(x, generator), normalise(x, MEAN, STD))
    assert x.dtype == torch.uint8
