"""Our corruptions against imagecorruptions-imaug, given its parameters and its random draws."""

import numpy as np
import pytest
from scipy import ndimage

from zosam.lab.data.corrupt import CORRUPTIONS, blur, corrupt, digital, noise, spatter, weather
from zosam.lab.data.corrupt.linear import bytes_of

oracle = pytest.importorskip("imagecorruptions.corruptions")
cv2 = pytest.importorskip("cv2")
Image = pytest.importorskip("PIL.Image")


class Draws:
    """numpy's global generator, which the oracle draws from, under the names that ours uses."""

    def __init__(self, seed):
        state = np.random.RandomState(seed)
        self.normal, self.uniform, self.integers = state.normal, state.uniform, state.randint
        self.poisson, self.random = state.poisson, state.random_sample


def pictures(count=12):
    """Smooth colourful pictures with flat black, white and grey patches: every branch of HSV is met."""
    rng = np.random.default_rng(5)
    x = ndimage.gaussian_filter(rng.normal(0, 1, (count, 32, 32, 3)), (0, 2, 2, 0))
    x = (np.clip(x * 3 + 0.5, 0, 1) * 255).astype(np.uint8)
    x[:, :4, :4], x[:, :4, -4:], x[:, -4:, :4] = 0, 255, 100
    return x


ORACLE = {  # the arguments that the oracle uses at its severities
    "gaussian_noise": (noise.gaussian_noise, [(0.08,), (0.12,), (0.18,), (0.26,), (0.38,)]),
    "shot_noise": (noise.shot_noise, [(60,), (25,), (12,), (5,), (3,)]),
    "speckle_noise": (noise.speckle_noise, [(0.15,), (0.2,), (0.35,), (0.45,), (0.6,)]),
    "gaussian_blur": (blur.gaussian_blur, [(1,), (2,), (3,), (4,), (6,)]),
    "defocus_blur": (blur.defocus_blur, [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)]),
    "zoom_blur": (blur.zoom_blur, [(1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)]),
    "fog": (weather.fog, [(1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)]),
    "snow": (
        weather.snow,
        [
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            None,  # zoom 4.5: the oracle takes the corner of the zoomed layer, the published files its middle
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ],
    ),
    "spatter": (
        spatter.spatter,
        [
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ],
    ),
    "brightness": (digital.brightness, [(0.1,), (0.2,), (0.3,), (0.4,), (0.5,)]),
    "contrast": (digital.contrast, [(0.4,), (0.3,), (0.2,), (0.1,), (0.05,)]),
    "saturate": (digital.saturate, [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)]),
    "jpeg_compression": (digital.jpeg_compression, [(25,), (18,), (15,), (10,), (7,)]),
    "elastic_transform": (
        digital.elastic_transform,
        [(0.16 * 250 * share, 0.32, 0.0) for share in (0.05, 0.065, 0.085, 0.1, 0.12)],
    ),
}
CASES = [(name, level) for name, (_, rows) in ORACLE.items() for level, row in enumerate(rows, 1) if row is not None]
NOT_THE_SAME_DRAWS = {"elastic_transform": 6}  # uniform numbers that ours draws first, for the affine part
WITHIN = {"snow": 0.5}  # of 255; the others within 0.1


@pytest.mark.parametrize(("name", "severity"), CASES)
def test_same_picture_as_the_oracle(name, severity):
    function, rows = ORACLE[name]
    difference = []
    for seed, x in enumerate(pictures()):
        np.random.seed(seed)  # noqa: NPY002
        np.random.uniform(size=NOT_THE_SAME_DRAWS.get(name, 0))  # noqa: NPY002
        with np.errstate(invalid="ignore"):
            theirs = np.asarray(getattr(oracle, name)(Image.fromarray(x), severity), np.float64)
        if np.isnan(theirs).any():
            continue  # spatter without a drop divides by zero there
        ours = function(x[None], *rows[severity - 1], rng=Draws(seed))[0]
        difference.append(np.abs(bytes_of(ours).astype(float) - bytes_of(theirs)).mean())
    assert len(difference) > 6
    assert np.mean(difference) < WITHIN.get(name, 0.1)


def by_hsv(x, channel, change):
    hsv = oracle.sk.color.rgb2hsv(x)
    hsv[..., channel] = np.clip(change(hsv[..., channel]), 0, 1)
    return oracle.sk.color.hsv2rgb(hsv)


def by_zoom(x, stop, step):
    factors = np.arange(1, stop, step)
    return (x + sum(oracle.clipped_zoom(x, factor)[:32, :32] for factor in factors)) / (len(factors) + 1)


LIBRARIES = {  # the formulas of CIFAR-10-C on scikit-image, scipy and opencv
    "gaussian_blur": lambda x, sigma: oracle.gaussian(x, sigma=sigma, channel_axis=-1),
    "defocus_blur": lambda x, *c: cv2.filter2D(x, -1, oracle.disk(*c)),
    "zoom_blur": by_zoom,
    "brightness": lambda x, amount: by_hsv(x, 2, lambda v: v + amount),
    "saturate": lambda x, factor, offset: by_hsv(x, 1, lambda s: s * factor + offset),
    "contrast": lambda x, factor: (x - x.mean((0, 1))) * factor + x.mean((0, 1)),
}


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_deterministic_ones_with_the_cifar_constants(name, severity):
    x = pictures()
    ours = corrupt(x, name, severity, np.random.default_rng(0))
    arguments = CORRUPTIONS[name].severities[severity - 1]
    theirs = np.stack([bytes_of(np.clip(LIBRARIES[name](p / 255.0, *arguments), 0, 1) * 255) for p in x])
    assert np.abs(ours.astype(float) - theirs).mean() < 0.1


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (6, 1.5), (8, 2), (9, 2.5), (14, 12)])
def test_motion_blur(radius, sigma):
    x, angles = pictures(), np.linspace(-135, 135, 12)
    ours = blur.move(x.astype(float), radius, sigma, angles)
    theirs = np.stack([oracle._motion_blur(p, radius, sigma, angle) for p, angle in zip(x, angles, strict=True)])
    assert np.abs(ours - theirs).max() < 1e-3


def test_motion_blur_draws_angles_within_45_degrees():
    x = pictures(1)
    np.random.seed(3)  # noqa: NPY002
    theirs = np.rint(oracle.motion_blur(Image.fromarray(x[0]), 1))
    assert np.abs(blur.motion_blur(x, 10, 3, rng=Draws(3))[0] - theirs).max() == 0


@pytest.mark.parametrize("severity", range(5))
def test_glass_blur_moves_the_same_pixels(severity):
    sigma, reach, rounds = c = [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (0.4, 1, 2), (0.25, 1, 1)][severity]
    for seed, x in enumerate(pictures(4)):
        ours = blur.glass_blur(x[None], sigma, reach, rounds, rng=Draws(seed))[0]
        soft = np.uint8(oracle.gaussian(x / 255.0, sigma=sigma, channel_axis=-1) * 255)
        moved = oracle._shuffle_pixels_njit_glass_blur.py_func(32, 32, soft, c, seed)
        theirs = np.clip(oracle.gaussian(moved / 255.0, sigma=sigma, channel_axis=-1), 0, 1) * 255
        assert np.abs(ours - theirs).max() < 1e-9


def test_impulse_noise_by_distribution():
    x = np.repeat(pictures(1), 200, 0)
    ours = bytes_of(noise.impulse_noise(x, 0.09, rng=np.random.default_rng(0)))
    theirs = np.stack([bytes_of(oracle.impulse_noise(Image.fromarray(p), 3, seed)) for seed, p in enumerate(x)])
    for value in (0, 255):
        assert (ours == value).mean() == pytest.approx((theirs == value).mean(), abs=0.002)
    assert (ours != x).mean() == pytest.approx((theirs != x).mean(), abs=0.002)


@pytest.mark.parametrize("factor", [0.95, 0.9, 0.85, 0.75, 0.65, 0.6, 0.3])
def test_pixelate_is_pillows(factor):
    x, small = pictures(), int(32 * factor)
    ours = digital.pixelate(x, factor, rng=np.random.default_rng(0))
    for got, p in zip(ours, x, strict=True):
        shrunk = Image.fromarray(p).resize((small, small), Image.Resampling.BOX)
        assert np.array_equal(got, np.asarray(shrunk.resize((32, 32), Image.Resampling.BOX)))


def test_affine_part_of_elastic_is_opencvs():
    x = pictures()
    ours = digital.elastic_transform(x, 0.0, 0.0, 2.56, rng=Draws(1))
    moves = Draws(1).uniform(-2.56, 2.56, (len(x), 3, 2))
    points = np.array([[26, 26], [26, 6], [6, 6]], np.float32)
    for got, p, move in zip(ours, x, moves, strict=True):
        matrix = cv2.getAffineTransform(points, points + move.astype(np.float32))
        theirs = cv2.warpAffine(p / 255.0, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101) * 255
        assert np.abs(got - theirs).mean() < 0.5  # opencv rounds places to 1/32 of a pixel


def test_frost_pictures_are_opencvs_at_a_fifth():
    for name, ours in zip(weather.FROST, weather.frost_pictures(), strict=True):
        folder = oracle.importlib.resources.files("imagecorruptions") / "frost"
        theirs = cv2.resize(cv2.imread(str(folder / name)), (0, 0), fx=0.2, fy=0.2)[..., ::-1]
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).mean() < 0.5  # two JPEG decoders


def test_frost_adds_a_piece_of_a_frost_picture():
    x = pictures(3)
    added = (weather.frost(x, 0.5, 0.25, rng=np.random.default_rng(0)) - 0.5 * x) / 0.25
    for piece in added:
        places = []
        for picture in weather.frost_pictures():
            windows = np.lib.stride_tricks.sliding_window_view(picture[..., 0], (32, 32))
            places += [*np.argwhere((np.abs(windows - piece[..., 0]) < 1e-6).all((2, 3)))]
        assert 1 <= len(places) <= 2  # two of the pictures are the same
        assert len({tuple(place) for place in places}) == 1


def test_edges_and_distances_are_opencvs():
    rng = np.random.default_rng(0)
    layer = ndimage.gaussian_filter(rng.normal(0.65, 0.3, (40, 32, 32)), (0, 1, 1))
    layer[layer < 0.69] = 0
    drops = bytes_of(layer * 255)
    rims = spatter.edges(drops, 50, 150)
    assert rims.any()
    assert np.array_equal(rims, np.stack([cv2.Canny(d, 50, 150) > 0 for d in drops]))
    far = np.stack([cv2.distanceTransform(255 - 255 * r.astype(np.uint8), cv2.DIST_L2, 5) for r in rims])
    np.testing.assert_allclose(spatter.distance(rims), far, atol=1e-4)
    some = rng.integers(3, 20, (5, 32, 32), np.uint8)
    assert np.array_equal(spatter.equalize(some), np.stack([cv2.equalizeHist(s) for s in some]))
    assert (
        spatter.equalize(np.full((1, 4, 4), 7, np.uint8)).tolist()
        == cv2.equalizeHist(np.full((4, 4), 7, np.uint8))[None].tolist()
    )
