"""CIFAR from its canonical files: a small stand-in for the paths, the real arrays for the numbers."""

import hashlib

import numpy as np
import pytest
import torch

from zosam.lab.data import DataError, cifar10, cifar100, data_folder
from zosam.lab.data.augment import normalise
from zosam.lab.data.cifar import CIFAR10, CIFAR100, read_split


def test_splits_shapes_and_values(small_cifar):
    data = cifar10(batch_size=25, data_dir=small_cifar)
    assert (data.classes, data.shape, len(data.train), data.validation) == (10, (3, 32, 32), 3, None)
    assert data.train.x.dtype == torch.uint8
    x, y = next(iter(data.test))
    assert x.shape == (20, 3, 32, 32)
    assert torch.equal(x, normalise(data.test.x, CIFAR10.mean, CIFAR10.std))
    assert torch.equal(y, data.test.y)
    assert sorted(torch.cat([y for _, y in data.train]).tolist()) == sorted(data.train.y.tolist())


def test_train_takes_so_many_pictures_the_same_for_every_seed(small_cifar):
    one, two = (cifar10(data_dir=small_cifar, seed=seed, train=20, validation=15) for seed in (0, 1))
    assert len(one.train.y) == 20
    assert torch.equal(one.train.x, two.train.x)
    held = {tuple(x.flatten().tolist()) for x in one.validation.x}
    assert held.isdisjoint(tuple(x.flatten().tolist()) for x in one.train.x)
    assert len(cifar10(data_dir=small_cifar, train=20).test.y) == len(cifar10(data_dir=small_cifar).test.y)
    with pytest.raises(ValueError, match="train must be"):
        cifar10(data_dir=small_cifar, train=46, validation=15)


def test_validation_is_held_out_and_the_same_for_every_seed(small_cifar):
    whole = cifar10(data_dir=small_cifar)
    one, two = (cifar10(data_dir=small_cifar, seed=seed, validation=15) for seed in (0, 1))
    assert torch.equal(one.validation.x, two.validation.x)
    assert len(one.train.y) == 45

    def sums(x):
        return sorted(x.long().sum((1, 2, 3)).tolist())

    assert sums(torch.cat((one.train.x, one.validation.x))) == sums(whole.train.x)
    with pytest.raises(ValueError, match="validation must be"):
        cifar10(data_dir=small_cifar, validation=60)


def test_deterministic_per_seed_epoch_rank(small_cifar):
    def batches(epoch=0, **settings):
        return torch.cat([x for x, _ in cifar10(batch_size=7, data_dir=small_cifar, **settings).train.epoch(epoch)])

    base = batches()
    assert torch.equal(batches(), base)
    assert not torch.equal(batches(epoch=1), base)
    assert not torch.equal(batches(seed=1), base)
    assert not torch.equal(batches(cutout=8), base)
    assert not torch.equal(batches(reflect=True), base)
    assert batches(rank=1, world=4).shape[0] == 15


def test_without_augmentation_training_sees_what_testing_would(small_cifar):
    data = cifar10(batch_size=60, data_dir=small_cifar, augment=False)
    seen = [next(data.train.epoch(epoch))[0] for epoch in (0, 1)]
    assert not torch.equal(*seen)  # in another order
    assert torch.equal(*(x.sum((1, 2, 3)).sort().values for x in seen))
    plain = data.test.augment(data.train.x, None)
    assert torch.equal(seen[0].sum((1, 2, 3)).sort().values, plain.sum((1, 2, 3)).sort().values)
    with pytest.raises(ValueError, match="leave out one or the other"):
        cifar10(data_dir=small_cifar, augment=False, cutout=8)


def test_shards_of_the_test_set_are_a_partition(small_cifar):
    parts = [cifar10(data_dir=small_cifar, rank=rank, world=3).test for rank in range(3)]
    assert [sum(len(y) for _, y in p) for p in parts] == [7, 7, 6]


def test_missing_data_says_what_to_do(tmp_path, small_cifar):
    with pytest.raises(DataError, match=r"cifar-100-python is not there: get it with `zosam data get cifar100`"):
        cifar100(data_dir=small_cifar)
    (small_cifar / CIFAR10.folder / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"data_batch_3 is not there: get it with `zosam data get cifar10`"):
        cifar10(data_dir=small_cifar)


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("ZOSAM_DATA", raising=False)
    assert data_folder().parts[-2:] == (".cache", "zosam")
    monkeypatch.setenv("ZOSAM_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path / "given") == tmp_path / "given"


@pytest.mark.parametrize(
    ("kind", "mean", "std", "train", "test"),
    [
        (
            CIFAR10,
            (0.49139968, 0.48215841, 0.44653091),
            (0.24703223, 0.24348513, 0.26158784),
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        ),
        (
            CIFAR100,
            (0.50707516, 0.48654887, 0.44091784),
            (0.26733429, 0.25643846, 0.27615047),
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
        ),
    ],
    ids=["cifar10", "cifar100"],
)
def test_the_real_arrays(real, kind, mean, std, train, test):
    root = real(kind.folder)
    for split, digest, per_class in (("train", train, 50_000 // kind.classes), ("test", test, 10_000 // kind.classes)):
        x, y = read_split(kind, split, root)
        assert np.bincount(y).tolist() == [per_class] * kind.classes
        if split == "train":
            values = np.moveaxis(x, 1, 0).reshape(3, -1)
            np.testing.assert_allclose(values.mean(1) / 255, mean, atol=1e-6)
            np.testing.assert_allclose(values.std(1) / 255, std, atol=1e-6)
        assert hashlib.sha256(np.ascontiguousarray(x.transpose(0, 2, 3, 1)).tobytes()).hexdigest() == digest
