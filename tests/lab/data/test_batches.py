"""The same batches for the same (seed, epoch, rank); shares that fit together."""

from itertools import chain

import pytest
import torch

from zosam.lab.data import DATA, Tensors, digits, load
from zosam.names import summary


def split(count=23, **settings):
    x = torch.arange(count)
    return Tensors(x, x.clone(), **{"batch_size": 4, **settings})


def seen(batches, epoch=0):
    return torch.cat([y for _, y in batches.epoch(epoch)]).tolist()


def test_every_data_set_has_a_line_for_the_list():
    assert all(summary(f) and len(summary(f)) < 100 for f in DATA.values())


def test_an_epoch_visits_everything_once_in_a_new_order():
    train = split(shuffle=True)
    first, second = seen(train, 0), seen(train, 1)
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second
    assert len(train) == 6
    assert seen(train, 0) == first
    assert seen(split(shuffle=True, seed=1)) != first


@pytest.mark.parametrize("count", [1, 2, 3, 23, 24])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_evaluation_shares_are_a_partition(count, world):
    parts = [split(count, rank=rank, world=world) for rank in range(world)]
    assert sorted(chain.from_iterable(seen(p) for p in parts if len(p))) == list(range(count))
    assert all(len(p) == len(list(p)) for p in parts if len(p))


def test_training_shares_take_equally_many_steps():
    parts = [split(shuffle=True, rank=rank, world=4) for rank in range(4)]
    views = [seen(p, epoch=3) for p in parts]
    assert [len(v) for v in views] == [5, 5, 5, 5]
    assert len(set(chain.from_iterable(views))) == 20
    whole = seen(split(shuffle=True), epoch=3)
    assert views[1] == whole[:20][1::4]
    # what is left out changes with the epoch
    left = {frozenset(range(23)) - frozenset(chain.from_iterable(seen(p, e) for p in parts)) for e in range(5)}
    assert len(left) > 1


def test_an_impossible_rank():
    with pytest.raises(ValueError, match="rank must be"):
        list(split(rank=2, world=2))


def test_augmentation_depends_on_seed_epoch_and_rank_only():
    def noise(x, generator):
        return torch.rand(len(x), generator=generator)

    def draws(epoch=0, **settings):
        return torch.cat([x for x, _ in split(shuffle=True, augment=noise, **settings).epoch(epoch)])

    base = draws()
    torch.manual_seed(99)
    torch.rand(5)
    assert torch.equal(draws(), base)
    assert not torch.equal(draws(seed=1), base)
    assert not torch.equal(draws(epoch=1), base)
    assert not torch.equal(draws(rank=1, world=2), draws(rank=0, world=2))


def test_the_users_random_numbers_are_not_touched():
    before = torch.get_rng_state()
    list(split(shuffle=True).epoch(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_digits_split_never_changes():
    data = digits(batch_size=32, seed=5)
    _, y = next(iter(data.test))
    assert (len(data.train.y), len(y), data.classes, data.shape) == (1437, 360, 10, (1, 8, 8))
    assert y[:12].tolist() == [2, 4, 8, 4, 9, 6, 8, 7, 7, 2, 1, 4]
    assert torch.bincount(y, minlength=10).tolist() == [28, 37, 30, 36, 39, 38, 34, 42, 38, 38]
    assert torch.equal(y, digits(seed=0).test.y)


def test_load_by_name_with_settings():
    data = load("digits", batch_size=100, seed=3, rank=1, world=2, data_dir="nowhere")
    assert len(data.train) == 8
    assert len(data.test.y) == 360
    assert sum(len(y) for _, y in data.test) == 180
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        load("cifar1", batch_size=1)
    with pytest.raises(ValueError, match="did you mean 'cutout'"):
        load("cifar10:cutuot=8", batch_size=1)
