"""Corruptions against numbers worked by hand and against the distributions they should have."""

import sys

import numpy as np
import pytest
from scipy import stats

from zosam.lab.data.corrupt import CORRUPTIONS, blur, corrupt, digital, linear, noise, spatter, weather

NEEDS_FROST = {"frost"}
NEEDS_PILLOW = {"jpeg_compression", "frost"}


def grey(value, count=40):
    return np.full((count, 32, 32, 3), value, np.uint8)


def some(count=6):
    return np.random.default_rng(1).integers(0, 256, (count, 32, 32, 3), np.uint8)


@pytest.mark.parametrize("name", sorted(CORRUPTIONS))
@pytest.mark.parametrize("severity", [1, 5])
def test_bytes_out_seeded_and_changed(name, severity):
    if name in NEEDS_PILLOW:
        pytest.importorskip("PIL")
    if name in NEEDS_FROST:
        pytest.importorskip("imagecorruptions")
    x = some()
    kept = x.copy()
    out = corrupt(x, name, severity, np.random.default_rng(3))
    assert out.dtype == np.uint8
    assert out.shape == x.shape
    assert np.array_equal(x, kept)
    assert (out != x).any()
    assert np.array_equal(out, corrupt(x, name, severity, np.random.default_rng(3)))


# not shot_noise: how many numbers Poisson draws depends on its mean
@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - NEEDS_PILLOW - {"shot_noise"}))
def test_each_picture_on_its_own(name):
    """A picture is not changed by its neighbours: what is deterministic gives the same alone as in a batch."""
    x = some(3)
    random = {"glass_blur", "motion_blur", "snow", "fog", "elastic_transform", "spatter"}
    if name in random or name.endswith("_noise"):
        other = x.copy()
        other[1] = 255 - other[1]  # the draws stay, one neighbour changes
        a, b = (corrupt(p, name, 3, np.random.default_rng(0)) for p in (x, other))
        assert np.array_equal(a[[0, 2]], b[[0, 2]])
        assert not np.array_equal(a[1], b[1])
    else:
        whole = corrupt(x, name, 3, np.random.default_rng(0))
        alone = np.concatenate([corrupt(p[None], name, 3, np.random.default_rng(9)) for p in x])
        assert np.abs(whole.astype(int) - alone).max() <= 1


def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean 'gaussian_noise'"):
        corrupt(some(), "gausian_noise", 1, np.random.default_rng())
    with pytest.raises(ValueError, match="severity must be 1 to 5, not 6"):
        corrupt(some(), "fog", 6, np.random.default_rng())


def test_there_are_nineteen_of_five():
    assert len(CORRUPTIONS) == 19
    assert all(len(c.severities) == 5 for c in CORRUPTIONS.values())


def test_noises_have_their_distributions():
    rng, middle = np.random.default_rng(0), grey(128) / 255
    gauss = noise.gaussian_noise(grey(128), 0.1, rng=rng) / 255
    assert stats.kstest((gauss - middle).ravel()[::7] / 0.1, "norm").pvalue > 0.01
    speckle = noise.speckle_noise(grey(128), 0.2, rng=rng) / 255
    assert stats.kstest(((speckle - middle) / middle).ravel()[::7] / 0.2, "norm").pvalue > 0.01
    shot = noise.shot_noise(grey(128), 50, rng=rng) / 255 * 50
    np.testing.assert_allclose(shot, np.rint(shot), atol=1e-9)
    assert shot.mean() == pytest.approx(50 * 128 / 255, rel=0.005)
    assert shot.var() == pytest.approx(50 * 128 / 255, rel=0.03)
    impulse = noise.impulse_noise(grey(128), 0.07, rng=rng)
    assert set(np.unique(impulse)) == {0, 128, 255}
    assert (impulse == 0).mean() == pytest.approx(0.035, abs=0.003)
    assert (impulse == 255).mean() == pytest.approx(0.035, abs=0.003)


def test_a_point_becomes_its_kernel():
    point = np.zeros((1, 32, 32, 3), np.uint8)
    point[0, 16, 16] = 255
    rng = np.random.default_rng(0)
    # radius 1: a plus of five pixels; the rim of sigma 0.2 is exp(-12.5) and hardly there
    disk = blur.defocus_blur(point, 1, 0.2, rng=rng)[0, ..., 0] / 255
    np.testing.assert_allclose(disk[15:18, 15:18], [[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]], atol=1e-5)
    soft = blur.gaussian_blur(point, 0.8, rng=rng)[0, ..., 1] / 255
    weights = np.exp(-(np.arange(-3, 4) ** 2) / (2 * 0.8**2))
    np.testing.assert_allclose(soft[13:20, 13:20], np.outer(weights, weights) / weights.sum() ** 2, atol=1e-12)


def test_motion_blur_of_a_point():
    point = np.zeros((3, 32, 32, 1))
    point[:, 16, 16] = 1
    out = blur.move(point, 2, 1.0, np.array([0.0, 90.0, 45.0]))[..., 0]
    weights = np.exp(-(np.arange(5) ** 2) / 2)
    weights /= weights.sum()
    np.testing.assert_allclose(out[0, 16, 12:17], weights[::-1])
    np.testing.assert_allclose(out[1, 12:17, 16], weights[::-1])
    # steps of 0, 0.71, 1.41, 2.12, 2.83 along the diagonal round to 0, 1, 1, 2, 3
    np.testing.assert_allclose(np.diag(out[2])[13:17], [weights[4], weights[3], weights[1] + weights[2], weights[0]])
    np.testing.assert_allclose(out.sum((1, 2)), 1)


@pytest.mark.parametrize(
    "name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur", "pixelate"]
)
def test_blurs_leave_a_flat_picture(name):
    out = corrupt(grey(90, 2), name, 5, np.random.default_rng(0)).astype(int)
    assert np.abs(out - 90).max() <= 1  # 89.999... is cut off


def test_glass_blur_only_moves_pixels():
    x = some(2)
    out = blur.glass_blur(x, 0.05, 1, 2, rng=np.random.default_rng(0))
    assert np.abs(out[:, :2] - x[:, :2])[:, 0].max() < 1e-9  # rows 0 and column 0 are never written
    for picture, source in zip(np.rint(out).astype(int), x, strict=True):
        colours = {tuple(p) for p in source.reshape(-1, 3)}
        assert {tuple(p) for p in picture.reshape(-1, 3)} <= colours


def test_zoom_of_a_ramp():
    ramp = np.arange(32.0)
    # twice: the middle 16 pixels (8..23) stretched over 32
    np.testing.assert_allclose(linear.zoom_matrix(32, 2) @ ramp, np.linspace(8, 23, 32), atol=1e-9)
    np.testing.assert_allclose(linear.zoom_matrix(32, 1), np.eye(32), atol=1e-12)


def test_hsv_by_hand():
    x = np.array([[[[200, 100, 50], [0, 0, 0], [60, 60, 60], [255, 0, 0]]]], np.uint8)
    rng = np.random.default_rng(0)
    # value 200 -> 240: all channels times 1.2; black becomes grey
    bright = digital.brightness(x, 40 / 255, rng=rng)[0, 0]
    np.testing.assert_allclose(bright, [[240, 120, 60], [40, 40, 40], [100, 100, 100], [255, 0, 0]], atol=1e-9)
    # saturation 0.75 -> 0.375: gaps to 200 halve
    pale = digital.saturate(x, 0.5, 0, rng=rng)[0, 0]
    np.testing.assert_allclose(pale, [[200, 150, 125], [0, 0, 0], [60, 60, 60], [255, 127.5, 127.5]], atol=1e-9)
    # grey with saturation 0.2 is a pale red
    np.testing.assert_allclose(digital.saturate(x, 2, 0.2, rng=rng)[0, 0, 2], [60, 48, 48], atol=1e-9)


def test_contrast_by_hand():
    x = np.zeros((1, 2, 2, 3), np.uint8)
    x[0, 0] = 200
    out = digital.contrast(x, 0.5, rng=np.random.default_rng(0))
    np.testing.assert_allclose(out[0, :, 0, 0], [150, 50])


def test_box_by_hand():
    # 4 to 2: means of two; 2 to 4: each twice; 3 to 2: the middle pixel is on the edge and goes to the left
    np.testing.assert_allclose(digital.box(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(digital.box(2, 4), [[1, 0], [1, 0], [0, 1], [0, 1]])
    np.testing.assert_allclose(digital.box(3, 2), [[0.5, 0.5, 0], [0, 0, 1]])
    assert digital.box(32, 20).sum(1).tolist() == pytest.approx([1] * 20)


def test_sampling_between_pixels():
    x = np.repeat(np.arange(4.0).reshape(1, 1, 4, 1) * 10, 2, 1)
    columns = np.array([[[0.25, -1.0, 3.5, -0.5]]])
    rows = np.zeros_like(columns)
    np.testing.assert_allclose(linear.sample(x, rows, columns, mirror=True)[0, 0, :, 0], [2.5, 10, 25, 5])
    np.testing.assert_allclose(linear.sample(x, rows, columns, mirror=False)[0, 0, :, 0], [2.5, 0, 30, 0])


def test_elastic_without_force_is_the_picture():
    x = some(2)
    np.testing.assert_allclose(digital.elastic_transform(x, 0, 0, 0, rng=np.random.default_rng(0)), x, atol=1e-6)


def test_clouds():
    clouds = weather.plasma(50, 32, 2.0, np.random.default_rng(0))
    assert clouds.min((1, 2)).tolist() == [0] * 50
    assert clouds.max((1, 2)).tolist() == [1] * 50
    # a faster decay gives a smoother cloud
    rough = [np.abs(np.diff(weather.plasma(50, 32, d, np.random.default_rng(0)), axis=1)).mean() for d in (1.5, 3.0)]
    assert rough[0] > 1.5 * rough[1]
    foggy = weather.fog(grey(100, 2), 1.5, 1.75, rng=np.random.default_rng(0))
    assert foggy.max() <= 100 + 1e-9  # never above the brightest value


def test_snow_and_spatter_only_add_where_they_should():
    x = grey(100, 20)
    snowy = weather.snow(x, 0.1, 0.2, 1, 0.6, 8, 3, 0.95, rng=np.random.default_rng(0))
    # the whitened picture without a flake: 0.95 * 100 + 0.05 * (150 + 127.5)
    assert snowy.min() == pytest.approx(95 + 0.05 * 277.5)
    assert snowy.max() > 150
    muddy = spatter.spatter(x, 0.65, 0.1, 0.5, 0.68, 0.6, 1, rng=np.random.default_rng(0))
    assert muddy.max() == pytest.approx(100)
    np.testing.assert_allclose(muddy.min((0, 1, 2)), [63, 42, 20], atol=1)
    dry = spatter.spatter(x, 0.0, 0.1, 1, 0.7, 0.5, 0, rng=np.random.default_rng(0))
    np.testing.assert_allclose(dry, x)  # no drop, no change, no division by zero


def test_frost_and_jpeg_say_what_to_install(monkeypatch):
    weather.frost_pictures.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'zosam\[corruptions\]'"):
        corrupt(some(1), "frost", 1, np.random.default_rng(0))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"Pillow: pip install 'zosam\[corruptions\]'"):
        corrupt(some(1), "jpeg_compression", 1, np.random.default_rng(0))
