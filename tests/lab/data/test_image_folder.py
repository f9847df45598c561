"""Folders of pictures: decoding, DeiT's augmentation, and clear errors."""

import ast
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import zosam
from zosam.lab.data import DataError, folder, imagenet
from zosam.lab.data.mix import erase, mix
from zosam.lab.data.pictures import MEAN, STD, centre, decode, random_crop
from zosam.lab.data.randaugment import CHANGES, rand_augment
from zosam.lab.data.scan import scan, splits

Image = pytest.importorskip("PIL.Image")
COLOURS = {"apple": (200, 30, 30), "leaf": (30, 200, 30), "sky": (30, 30, 200)}


@pytest.fixture
def root(tmp_path):
    """Three classes of flat colours: six pictures each to train on, two to test, in odd sizes."""
    for split, count in (("train", 6), ("val", 2)):
        for name, colour in COLOURS.items():
            place = tmp_path / "flats" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40 + 5 * number, 50), colour).save(place / f"{number}.JPEG", quality=95)
    return tmp_path


def flats(root, **settings):
    return folder(**{"data_dir": root, "path": "flats", "batch_size": 4, "image_size": 32, "workers": 0, **settings})


def test_pictures_labels_and_shapes(root):
    data = flats(root)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (3, (3, 32, 32), 5, 2)
    x, y = (torch.cat(parts) for parts in zip(*data.train, strict=True))
    assert sorted(y.tolist()) == [0] * 6 + [1] * 6 + [2] * 6
    for picture, label in zip(x, y, strict=True):
        colour = torch.tensor(list(COLOURS.values())[label]) / 255
        wanted = (colour - torch.tensor(MEAN)) / torch.tensor(STD)
        assert (picture - wanted.view(3, 1, 1)).abs().max() < 0.1
    assert torch.cat([y for _, y in data.test]).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("augment", ["crop", "deit"])
def test_the_same_for_any_number_of_workers(root, augment):
    def batches(workers, epoch=0):
        return [*zip(*flats(root, augment=augment, workers=workers, seed=3).train.epoch(epoch), strict=True)]

    before = torch.get_rng_state()
    alone, helped = batches(0), batches(2)
    assert all(torch.equal(a, b) for pair in zip(alone, helped, strict=True) for a, b in zip(*pair, strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(torch.cat(batches(0, epoch=1)[0]), torch.cat(alone[0]))


def test_shares(root):
    parts = [flats(root, rank=rank, world=4) for rank in range(4)]
    assert [sum(len(y) for _, y in p.test) for p in parts] == [2, 2, 1, 1]
    assert [len(p.train.keys(0)) for p in parts] == [4, 4, 4, 4]
    assert len({number for p in parts for _, number in p.train.keys(0)}) == 16


def test_repeated_augmentation_spreads_copies_over_ranks(root):
    parts = [flats(root, augment="deit", rank=rank, world=3).train.keys(2) for rank in range(3)]
    assert [len(p) for p in parts] == [6, 6, 6]
    # each rank gets one of the three copies of the same six pictures, at another place: another augmentation
    assert [n for _, n in parts[0]] == [n for _, n in parts[1]] == [n for _, n in parts[2]]
    assert len({n for _, n in parts[0]}) == 6
    assert len({place for p in parts for place, _ in p}) == 18


def test_mixed_labels_are_shares(root):
    data = flats(root, augment="deit")
    for x, y in data.train:
        assert y.shape == (len(x), 3)
        torch.testing.assert_close(y.sum(1), torch.ones(len(x)))
    x, y = next(iter(data.test))
    assert y.dtype == torch.long


def test_mixup_and_cutmix_by_hand():
    x = torch.stack([torch.full((3, 16, 16), float(v)) for v in range(4)])
    y = torch.tensor([0, 1, 2, 3])
    seen = set()
    for seed in range(40):
        out, shares = mix(x, y, 5, np.random.default_rng(seed))
        weight = shares[0, 0].item()
        torch.testing.assert_close(shares[0], torch.tensor([weight, 0, 0, 1 - weight, 0]))
        # the mean of the picture is mixed in the same proportion as its label, whichever way
        torch.testing.assert_close(out.mean((1, 2, 3)), weight * y + (1 - weight) * y.flip(0), atol=1e-4, rtol=1e-4)
        seen.add("cutmix" if len(out[0].unique()) == 2 else "mixup")
    assert seen == {"cutmix", "mixup"}
    assert torch.equal(x[2], torch.full((3, 16, 16), 2.0))


def test_erasing():
    x = erase(torch.full((400, 3, 32, 32), 50.0), np.random.default_rng(0))
    changed = x != 50
    hit = changed.flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.25, abs=0.06)
    share = changed[hit].float().mean((1, 2, 3))
    assert 0.01 < share.min() < 0.06
    assert 0.25 < share.max() < 0.36
    assert x[changed].mean().abs() < 0.05
    assert x[changed].std().item() == pytest.approx(1, abs=0.05)


def ramp():
    """Colours from 30 to 200 that change slowly, so that a small move is a small change, and one edge."""
    rows, columns = np.mgrid[:40, :48]
    x = np.stack((30 + 3 * rows, 200 - 3 * columns, 60 + rows + columns), 2)
    x[10:20, 10:20] += 20
    return Image.fromarray(x.astype(np.uint8))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_keeps_the_size_and_grows(change):
    picture = ramp()
    out = [np.asarray(change(picture, strength, random.Random(0)), int) for strength in (0.05, 0.5, 0.9)]
    source = np.asarray(picture, int)
    assert all(o.shape == source.shape for o in out)
    moved = [np.abs(o - source).mean() for o in out]
    assert moved[2] > 0
    assert moved == sorted(moved)


def test_changes_by_hand():
    picture = Image.fromarray(np.array([[[10, 100, 200]]], np.uint8))
    by_name = {change.__name__: change for change in CHANGES}
    pixel = {
        name: np.asarray(by_name[name](picture, 0.5, random.Random(0)))[0, 0].tolist()
        for name in ("invert", "posterize", "solarize", "solarize_add")
    }
    assert pixel["invert"] == [245, 155, 55]
    assert pixel["posterize"] == [0, 64, 192]  # two bits are left
    assert pixel["solarize"] == [10, 100, 55]  # from 128 on turned over
    assert pixel["solarize_add"] == [65, 155, 200]  # 55 added below 128
    wide = Image.fromarray(np.tile(np.arange(100, dtype=np.uint8)[None, :, None], (20, 1, 3)))
    moved = np.asarray(by_name["translate_x"](wide, 1.0, random.Random(0)))[10, :, 0].astype(int)
    assert abs(moved[20] - (20 + 45)) <= 1 or abs(moved[60] - (60 - 45)) <= 1


def test_rand_augment_is_seeded_and_varies():
    picture = ramp()
    first = [np.asarray(rand_augment(picture, random.Random(seed))).tobytes() for seed in range(20)]
    again = [np.asarray(rand_augment(picture, random.Random(seed))).tobytes() for seed in range(20)]
    assert first == again
    assert 8 < len(set(first)) < 21
    assert picture.tobytes() in first  # with chance 1/4 both coins say no


def test_crops():
    picture = ramp()
    assert random_crop(picture, 24, random.Random(0)).size == (24, 24)
    thin = Image.new("RGB", (400, 3), (9, 9, 9))
    assert random_crop(thin, 24, random.Random(0)).size == (24, 24)
    # 224 of 256: a picture of 256 x 300 gives its middle 224 pixels unchanged
    big = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 300, 3), np.uint8))
    assert np.array_equal(np.asarray(centre(big, 224)), np.asarray(big)[16:240, 38:262])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("content", [b"this is no picture", b"", None], ids=["text", "empty", "cut"])
def test_a_picture_that_is_none(root, workers, content):
    bad = root / "flats" / "train" / "leaf" / "3.JPEG"
    bad.write_bytes(bad.read_bytes()[:300] if content is None else content)
    with pytest.raises(DataError, match=rf"{bad} cannot be read as a picture \(.+\): replace or remove it"):
        list(flats(root, workers=workers).train)


def test_other_formats_and_colours(root):
    place = root / "flats" / "val" / "sky"
    Image.new("L", (40, 40), 100).save(place / "0.JPEG")
    Image.new("CMYK", (40, 40), (1, 2, 3, 4)).save(place / "1.JPEG")
    Image.new("RGBA", (40, 40), (1, 2, 3, 4)).save(place / "2.png")
    (place / "readme.txt").write_text("not a picture and not listed as one")
    assert sum(len(y) for _, y in flats(root).test) == 7


def test_folders_that_are_wrong(root, tmp_path):
    top = root / "flats"
    with pytest.raises(DataError, match=r"nothing is not there: it should hold train/"):
        flats(root, path="nothing")
    (top / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match=rf"{top / 'train' / 'zebra'} holds no picture"):
        flats(root)
    Image.new("RGB", (40, 40)).save(top / "train" / "zebra" / "0.png")
    with pytest.raises(DataError, match=r"must have the same classes; only in one of them: zebra"):
        flats(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty is empty"):
        scan(tmp_path / "empty")
    with pytest.raises(ValueError, match="did you mean 'deit'"):
        flats(root, augment="diet")


def test_test_stands_for_val(root):
    (root / "flats" / "val").rename(root / "flats" / "test")
    assert len(splits(root / "flats")[1].files) == 6


def test_imagenet_must_be_whole(root):
    with pytest.raises(DataError, match=r"flats has 3 classes, ImageNet-1K has 1000"):
        imagenet(data_dir=root, path="flats")


def test_real_pictures(real):
    root = real("imagenette")
    data = folder(data_dir=root, path="imagenette", image_size=64, batch_size=50, workers=0)
    assert (data.classes, len(data.train), len(data.test)) == (10, 20, 6)
    x, y = (torch.cat(parts) for parts in zip(*data.test, strict=True))
    assert torch.bincount(y).tolist() == [30] * 10
    assert x.mean().abs() < 0.3
    assert 0.8 < x.std() < 1.4


def test_only_the_formats_that_we_name_are_opened(root, tmp_path, monkeypatch):
    """A PostScript file called .png would start Ghostscript."""
    from PIL import EpsImagePlugin

    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    picture = root / "flats" / "train" / "apple" / "0.png"
    picture.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%BeginPreview\n%%EndPreview\nshowpage\n"
    )
    with pytest.raises(DataError, match=r"0\.png cannot be read as a picture"):
        decode(str(picture))
    assert not started
    for kind in ("GIF", "TIFF", "ICO"):
        path = tmp_path / f"{kind}.png"
        Image.new("RGB", (9, 9)).save(path, kind)
        with pytest.raises(DataError, match="cannot be read as a picture"):
            decode(str(path))
    for kind in ("JPEG", "PNG", "WEBP", "BMP"):
        path = tmp_path / f"{kind}.png"  # the content counts, not the name
        Image.new("RGB", (9, 9)).save(path, kind)
        assert decode(str(path)).size == (9, 9)


def test_no_picture_is_opened_without_naming_its_formats():
    source, found = Path(zosam.__file__).parent, 0
    for file in source.rglob("*.py"):
        for call in (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)):
            if ast.unparse(call.func) == "Image.open":
                found += 1
                assert "formats" in {keyword.arg for keyword in call.keywords}, f"{file}, line {call.lineno}"
    assert found >= 3
