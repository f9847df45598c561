"""Masks over a training: bits, sub-samples and shares worked by hand."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import torch

from zosam.lab.measure.masks_film import figures, film, folded, history


def mask(*rows):
    return torch.tensor(rows).bool()


FRAMES = [
    (0, {"a": mask([1, 1, 0, 0], [1, 1, 0, 0]), "b": mask([1, 0])}),
    (10, {"a": mask([1, 0, 1, 0], [1, 1, 0, 0]), "b": mask([0, 1])}),
    (20, {"a": mask([1, 0, 0, 0], [1, 0, 0, 0]), "b": mask([1, 0])}),
]


def unpacked(bits, shape):
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=shape[0] * shape[1]).reshape(shape)


def test_the_film_holds_the_masks():
    made = film(FRAMES)
    assert made["layers"] == [{"name": "a", "shape": [2, 4]}, {"name": "b", "shape": [1, 2]}]
    assert [frame["step"] for frame in made["frames"]] == [0, 10, 20]
    for frame, (_, masks) in zip(made["frames"], FRAMES, strict=True):
        for bits, layer in zip(frame["masks"], made["layers"], strict=True):
            assert unpacked(bits, layer["shape"]).tolist() == masks[layer["name"]].int().tolist()
    assert [frame["moved"] for frame in made["frames"]] == [[0, 0], [2 / 8, 1], pytest.approx([2 / 6, 1])]
    assert [frame["survived"] for frame in made["frames"]] == [[1, 1], [3 / 4, 0], [2 / 4, 1]]
    assert json.loads(json.dumps(made)) == made


def test_a_convolution_is_folded_and_thinned_evenly():
    torch.manual_seed(0)
    conv = torch.rand(128, 32, 3, 3) < 0.3
    for layout in (conv, conv.to(memory_format=torch.channels_last)):
        shown = folded(layout)
        assert shown.shape == (64, 96)
        assert torch.equal(shown, conv.reshape(128, 288)[::2, ::3])
    assert torch.equal(folded(conv[:5, :2]), conv[:5, :2].reshape(5, 18))
    made = film([(0, {"conv": conv})])
    assert unpacked(made["frames"][0]["masks"][0], (64, 96)).tolist() == folded(conv).int().tolist()


def test_numbers_worked_by_hand():
    found = history(FRAMES)
    assert found["a"]["density"] == [4 / 8, 4 / 8, 2 / 8]
    assert found["a"]["changed"] == pytest.approx([0, 2 / 8, 2 / 6])  # one went and one came of 4; two went
    assert found["a"]["survived"] == [1, 3 / 4, 2 / 4]
    assert found["b"]["changed"] == [0, 1, 1]
    assert found["b"]["survived"] == [1, 0, 1]  # it was away in between
    assert found["all layers"]["density"] == pytest.approx([5 / 10, 5 / 10, 3 / 10])
    assert found["all layers"]["survived"] == pytest.approx([1, 3 / 5, 3 / 5])


def test_figures_over_the_steps():
    made = {figure["name"]: figure for figure in figures(FRAMES)}
    assert set(made) == {"masks-density", "masks-changed", "masks-survived"}
    series = {s["name"]: s for s in made["masks-survived"]["series"]}
    assert series["a"]["x"] == [0, 10, 20]
    assert series["a"]["y"] == history(FRAMES)["a"]["survived"]
    assert json.loads(json.dumps(made)) == made


def test_frames_of_a_real_training(trial):
    trial = trial("sgd", "set")
    sparse = trial.sparse
    frames = [(0, {n: m.clone() for n, m in sparse.masks.items()})]
    sparse.watchers.append(lambda: frames.append((sparse.steps, {n: m.clone() for n, m in sparse.masks.items()})))
    trial.step(8)
    found = history(frames)["all layers"]
    assert len(frames) > 2
    assert len(set(found["density"])) == 1  # the budget is constant
    assert all(share > 0 for share in found["changed"][1:])
    assert found["survived"][-1] < 1


def test_bad_frames():
    with pytest.raises(ValueError, match="one frame"):
        film([])
    with pytest.raises(ValueError, match="step 5"):
        history([FRAMES[0], (5, {"a": FRAMES[0][1]["a"]})])
