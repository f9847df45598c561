"""Masks over a training, as a film of pictures and as numbers for each layer.

A frame is (step, masks by the name of the weight). Note one whenever the masks change:

    frames = [(0, {n: m.clone() for n, m in sparse.masks.items()})]
    sparse.watchers.append(lambda: frames.append((sparse.steps, {n: m.clone() for n, m in sparse.masks.items()})))
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zosam.sparse.save import pack

Frame = tuple[int, Mapping[str, Tensor]]
ROWS, COLUMNS = 64, 96  # the most that is shown of a layer
TITLES = {
    "density": "Share of weights that are active",
    "changed": "Share of the mask that has changed since the frame before",
    "survived": "Share of the first mask that is still there",
}


def film(frames: Sequence[Frame]) -> dict[str, Any]:
    """The masks as pictures [out, in * kernel]; of a large layer a fixed, even choice of rows and columns is shown.

    With each frame goes, for each whole layer, the share of its mask that moved since the frame before, and the share
    of the first mask that is still there.
    """
    names, shares = _layers(frames), history(frames)
    packed = []
    for at, (step, masks) in enumerate(frames):
        pictures = [folded(masks[name]) for name in names]
        bits = [base64.b64encode(pack(p).numpy().tobytes()).decode() for p in pictures]
        moved, survived = ([shares[name][key][at] for name in names] for key in ("changed", "survived"))
        packed.append({"step": step, "label": "", "masks": bits, "moved": moved, "survived": survived})
    return {
        "name": "masks-film",
        "kind": "film",
        "title": "Masks over training",
        "note": f"A point for each active weight; at most {ROWS} outputs and {COLUMNS} inputs of each layer, evenly.",
        "layers": [{"name": n, "shape": list(folded(frames[0][1][n]).shape)} for n in names],
        "frames": packed,
    }


def folded(mask: Tensor) -> Tensor:
    """The mask as a picture, [out, in * kernel], thinned evenly to at most 64 x 96."""
    picture = mask.detach().bool().cpu().reshape(mask.shape[0], -1)
    rows, columns = (_evenly(size, most) for size, most in zip(picture.shape, (ROWS, COLUMNS), strict=True))
    return picture[rows][:, columns]


def history(frames: Sequence[Frame]) -> dict[str, dict[str, list[float]]]:
    """For each layer, and for "all layers", over the frames: `density`, `changed`, `survived`.

    `changed` is how many weights came or went since the frame before, over the active weights of both: where the
    budget is constant, the share of the mask that was replaced. `survived` is the share of the first mask's weights
    that are active now, whether or not they were away in between.
    """
    names = _layers(frames)
    counts = {n: torch.tensor([_counts(frames, i, n) for i in range(len(frames))]) for n in names}
    counts["all layers"] = torch.stack([counts[n] for n in names]).sum(0)
    found = {}
    for name, table in counts.items():
        size, now, before, moved, left = table.double().unbind(1)
        shares = {"density": now / size, "changed": moved / (now + before).clamp_min(1), "survived": left / now[0]}
        found[name] = {k: v.tolist() for k, v in shares.items()}
    return found


def figures(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """The numbers of `history` as three figures over the steps."""
    steps, found = [step for step, _ in frames], history(frames)
    return [
        {
            "name": f"masks-{key}",
            "kind": "lines",
            "title": title,
            "note": f"{len(frames)} frames.",
            "x": "step",
            "y": "share",
            "log_y": False,
            "series": [{"name": n, "x": steps, "y": f[key], "dashed": n == "all layers"} for n, f in found.items()],
        }
        for key, title in TITLES.items()
    ]


def _counts(frames: Sequence[Frame], i: int, name: str) -> list[int]:
    """Weights, active now, active in the frame before, those that came or went, those of the first mask now active."""
    first, before, now = (frames[j][1][name].bool() for j in (0, max(i - 1, 0), i))
    return [now.numel(), *(int(torch.count_nonzero(m)) for m in (now, before, now ^ before, now & first))]


def _layers(frames: Sequence[Frame]) -> list[str]:
    if not frames:
        raise ValueError("a film needs one frame at least")
    shapes = {n: m.shape for n, m in frames[0][1].items()}
    for step, masks in frames:
        if {n: m.shape for n, m in masks.items()} != shapes:
            raise ValueError(f"the frame of step {step} has other layers than the first")
    return list(shapes)


def _evenly(size: int, most: int) -> Tensor:
    """At most `most` of `size` places, evenly."""
    shown = min(size, most)
    return torch.arange(shown) * size // shown
