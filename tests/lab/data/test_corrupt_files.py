"""Making CIFAR-10-C: the published layout, whole files only, the same whatever the number of processes."""

import multiprocessing
import os
import textwrap

import numpy as np
import pytest
import torch

from zosam.lab.data import DataError, cifar10c, corrupted
from zosam.lab.data.augment import normalise
from zosam.lab.data.cifar import CIFAR10, read_split
from zosam.lab.data.corrupt import CORRUPTIONS, archive, corrupt, generate

SOME = ("gaussian_noise", "contrast")


@pytest.fixture
def made(small_cifar):
    generate(small_cifar, only=SOME, processes=1)
    return small_cifar


def test_published_layout(made):
    x, y = archive.read_split(archive.CIFAR10, "test", made)
    folder = made / "CIFAR-10-C"
    assert sorted(p.name for p in folder.iterdir()) == [
        "contrast.npy",
        "gaussian_noise.npy",
        "generated.json",
        "labels.npy",
    ]
    assert np.array_equal(np.load(folder / "labels.npy"), np.tile(y, 5))
    contrast = np.load(folder / "contrast.npy")
    assert contrast.shape == (100, 32, 32, 3)
    for severity in range(1, 6):
        block = contrast[(severity - 1) * 20 : severity * 20]
        wanted = corrupt(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "contrast", severity, np.random.default_rng())
        assert np.array_equal(block, wanted)


def test_the_same_with_two_processes_and_other_with_another_seed(made, tmp_path, monkeypatch):
    def started_at_once(how):  # all that they are given goes through a pickle, as with spawn
        assert how == "spawn"
        return own("forkserver")

    own = multiprocessing.get_context
    monkeypatch.setattr(archive.multiprocessing, "get_context", started_at_once)
    generate(made, out=tmp_path / "two", only=SOME, processes=2)
    generate(made, out=tmp_path / "seed", only=SOME, processes=1, seed=1)
    for name in SOME:
        first = (made / "CIFAR-10-C" / f"{name}.npy").read_bytes()
        assert (tmp_path / "two" / f"{name}.npy").read_bytes() == first
        assert ((tmp_path / "seed" / f"{name}.npy").read_bytes() == first) is (name == "contrast")


def test_severities_and_blocks_have_their_own_noise(made, monkeypatch, tmp_path):
    noisy = np.load(made / "CIFAR-10-C" / "gaussian_noise.npy").reshape(5, 20, -1).astype(float)
    clean = archive.read_split(archive.CIFAR10, "test", made)[0].transpose(0, 2, 3, 1).reshape(20, -1)
    inside = (clean > 80) & (clean < 175)
    first, second = ((noisy[level] - clean)[inside] for level in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    monkeypatch.setattr(archive, "BLOCK", 10)
    generate(made, out=tmp_path / "blocks", only=SOME, processes=1)
    small = np.load(tmp_path / "blocks" / "gaussian_noise.npy").reshape(5, 20, -1)
    assert np.array_equal(small[0, :10], noisy[0, :10])  # the stream starts with the block
    assert not np.array_equal(small[0, 10:], noisy[0, 10:])


def test_resumes_and_repairs(made, monkeypatch):
    folder = made / "CIFAR-10-C"
    whole = (folder / "contrast.npy").read_bytes()
    (folder / "contrast.npy").write_bytes(whole[:5000])  # cut short by something else than us
    calls = []
    real = archive.corrupt
    monkeypatch.setattr(archive, "corrupt", lambda *args: calls.append(args[1]) or real(*args))
    generate(made, only=SOME, processes=1)
    assert set(calls) == {"contrast"}
    assert (folder / "contrast.npy").read_bytes() == whole
    np.save(folder / "contrast.npy", np.zeros((99, 32, 32, 3), np.uint8))
    generate(made, only=SOME, processes=1)
    assert (folder / "contrast.npy").read_bytes() == whole


def test_a_failure_leaves_nothing_to_trust(made, monkeypatch):
    folder = made / "CIFAR-10-C"
    before = {p.name for p in folder.iterdir()}
    real = archive.corrupt

    def fails(x, name, severity, rng):
        if severity == 4:
            raise KeyboardInterrupt
        return real(x, name, severity, rng)

    monkeypatch.setattr(archive, "corrupt", fails)
    with pytest.raises(KeyboardInterrupt):
        generate(made, only=["brightness"], processes=1)
    assert {p.name for p in folder.iterdir()} == before


def test_a_full_disk(made, forked):
    """The system refuses to write more than 100,000 bytes into one file; 307,328 are needed."""
    code = textwrap.dedent(f"""
        import resource, sys
        import numpy as np
        from pathlib import Path
        from zosam.lab.data.corrupt.archive import write_files
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        x = np.zeros((20, 32, 32, 3), np.uint8)
        write_files(x, np.zeros(20, np.int64), Path({str(made / "full")!r}), ["contrast"], processes=1)
    """)
    writer = forked(code)
    assert writer.ends() == 1
    assert f"zosam.files.NotWritten: {made / 'full' / 'contrast.npy'} could not be written" in writer.says()
    assert "the same command goes on" in writer.says()
    assert sorted(os.listdir(made / "full")) == ["generated.json", "labels.npy"]


def test_files_of_two_makings_are_not_mixed(made):
    with pytest.raises(DataError, match="another seed"):
        generate(made, only=SOME, processes=1, seed=5)
    (made / "CIFAR-10-C" / "generated.json").unlink()
    with pytest.raises(DataError, match="not made here"):
        generate(made, only=SOME, processes=1)


def test_an_unknown_corruption_makes_nothing(small_cifar):
    with pytest.raises(ValueError, match="did you mean 'fog'"):
        generate(small_cifar, only=["frog"])
    assert not (small_cifar / "CIFAR-10-C").exists()


def test_reading(made):
    data = cifar10c(data_dir=made, corruption="contrast", severity=2)
    (part,) = data.test.parts
    assert (part.corruption, part.severity, len(data.test), len(data.train)) == ("contrast", 2, 1, 1)
    x, y = next(iter(data.test))
    stored = np.load(made / "CIFAR-10-C" / "contrast.npy")[20:40]
    wanted = normalise(torch.from_numpy(stored).permute(0, 3, 1, 2), CIFAR10.mean, CIFAR10.std)
    assert torch.equal(x, wanted)
    assert torch.equal(y, torch.from_numpy(np.load(made / "CIFAR-10-C" / "labels.npy")[20:40].astype(np.int64)))
    parts = corrupted("contrast", data_dir=made, batch_size=7, rank=1, world=3)
    assert [p.severity for p in parts] == [1, 2, 3, 4, 5]
    assert [sum(len(y) for _, y in p) for p in parts] == [7] * 5
    assert len(cifar10c(data_dir=made, corruption="contrast").test) == 5


def test_reading_errors(made):
    folder = made / "CIFAR-10-C"
    with pytest.raises(DataError, match=r"shot_noise.npy is not there: get it with .* or make it with"):
        corrupted("shot_noise", data_dir=made)
    with pytest.raises(ValueError, match="did you mean 'contrast'"):
        corrupted("contrst", data_dir=made)
    with pytest.raises(ValueError, match="severity must be"):
        corrupted("contrast", 6, data_dir=made)
    whole = (folder / "contrast.npy").read_bytes()
    for content in (b"", whole[:40], whole[:4000], b"not an array"):
        (folder / "contrast.npy").write_bytes(content)
        with pytest.raises(DataError, match=r"contrast.npy is damaged"):
            corrupted("contrast", data_dir=made)
    np.save(folder / "contrast.npy", np.zeros((90, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match=r"contrast.npy must be of shape \(100, 32, 32, 3\), found uint8 \(90"):
        corrupted("contrast", data_dir=made)
    np.save(folder / "labels.npy", np.full(100, 10, np.uint8))
    with pytest.raises(DataError, match=r"labels.npy: labels must be 0 to 9, found 10 to 10"):
        corrupted("gaussian_noise", data_dir=made)


def test_the_real_files(real):
    root = real("CIFAR-10-C")
    parts = corrupted(data_dir=root)
    assert len(parts) == 95
    clean = read_split(CIFAR10, "test", root)[0].transpose(0, 2, 3, 1)
    harm = {(p.corruption, p.severity): np.abs(p.x[:500].astype(int) - clean[:500]).mean() for p in parts}
    assert all(2 < harm[name, 5] < 70 for name in CORRUPTIONS)
    for name in ("gaussian_noise", "shot_noise", "defocus_blur", "zoom_blur", "fog", "contrast", "jpeg_compression"):
        levels = [harm[name, severity] for severity in range(1, 6)]
        assert levels == sorted(levels)
