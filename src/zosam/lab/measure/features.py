"""What the layers of a network see: feature maps as pictures, and a number for how concentrated they are.

Layers are counted as in the names of the networks: convolutions and linear layers in the order in which they run,
shortcuts left out, so that ResNet-32 has 32. The map of a layer is what leaves the first activation function after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from zosam.lab.measure.untouched import untouched
from zosam.machine import double
from zosam.sparse.prunable import is_shortcut

ACTIVATIONS = {F.relu, torch.relu, Tensor.relu, torch.relu_, Tensor.relu_, F.leaky_relu, F.gelu, F.silu, torch.tanh}


@torch.no_grad()
def feature_maps(model: nn.Module, pictures: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """The maps of those layers, counted from 1, each [picture, channel, row, column]; the model runs in eval mode."""
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    weighted: dict[str, Any] = {n: m for n, m in model.named_modules() if isinstance(m, kinds)}
    shortcuts, watch = {n for n, m in weighted.items() if is_shortcut(n, m.weight)}, _Watch(set(layers))
    hooks = [m.register_forward_hook(watch.layer) for n, m in weighted.items() if n not in shortcuts]
    try:
        with untouched(model), watch:
            model(pictures)
    finally:
        for hook in hooks:
            hook.remove()
    flat = [n for n in layers if n in watch.maps and watch.maps[n].dim() != 4]
    missing = [n for n in layers if n not in watch.maps]
    if missing or flat:
        raise ValueError(
            f"layer {(missing or flat)[0]} {'does not exist' if missing else 'gives no maps'}: this network has"
            f" {watch.count} layers, {watch.spatial} of which give maps"
        )
    return {n: watch.maps[n] for n in layers}


def shown(maps: Tensor, strongest: int | None = None) -> Tensor:
    """One picture for each: the mean over all channels, or over the `strongest`, those with most energy."""
    if strongest is None:
        return maps.mean(1)
    best = maps.square().sum((2, 3)).topk(min(strongest, maps.shape[1]), dim=1).indices
    return maps.take_along_dim(best[:, :, None, None], 1).mean(1)


def concentration(maps: Tensor, share: float = 0.1) -> float:
    """The share of energy (squares, summed over channels) in the strongest `share` of the pixels; mean over pictures.

    A map that is the same everywhere has `share`, one that is a single point has 1. Crisp, localised maps have more;
    that more is better is an opinion, not part of the measurement.
    """
    energy = double(maps).square().sum(1).flatten(1)
    top = energy.topk(max(1, round(share * energy.shape[1])), dim=1).values.sum(1)
    return float((top / energy.sum(1).clamp_min(torch.finfo(energy.dtype).tiny)).mean())


def figure_features(
    models: Mapping[str, nn.Module],
    pictures: Mapping[str, Tensor],
    layers: Sequence[int] = (3, 17, 31),
    strongest: int | None = None,
) -> dict[str, Any]:
    """Maps as tiles: a row for each picture and network, a column for each layer, and the picture itself before them.

    `pictures` holds them by name, each [3, row, column], as the network takes them.
    """
    x = torch.stack(list(pictures.values()))
    found = {name: feature_maps(model, x, layers) for name, model in models.items()}
    tiles = [
        [_rounded(shown(maps[n], strongest)[i]) for n in layers]
        for i in range(len(pictures))
        for maps in found.values()
    ]
    channels = "all channels" if strongest is None else f"the {strongest} channels with most energy"
    return {
        "name": "feature-maps",
        "kind": "tiles",
        "title": "Feature maps",
        "note": f"Activations after each layer, mean over {channels}; each layer on one scale for all networks.",
        "rows": [f"{picture}, {name}" for picture in pictures for name in models],
        "columns": [f"layer {n}" for n in layers],
        "tiles": tiles,
        "inputs": [_coloured(picture) for picture in pictures.values() for _ in models],
    }


def figure_concentration(
    models: Mapping[str, nn.Module], pictures: Tensor, layers: Sequence[int] = (3, 17, 31), share: float = 0.1
) -> dict[str, Any]:
    """How concentrated the maps are, over many pictures [picture, 3, row, column], as bars."""
    found = {name: feature_maps(model, pictures, layers) for name, model in models.items()}
    return {
        "name": "feature-concentration",
        "kind": "bars",
        "title": "How concentrated the feature maps are",
        "note": f"Share of energy in the strongest {share:.0%} of the pixels, mean over {len(pictures)} pictures.",
        "groups": [f"layer {n}" for n in layers],
        "y": "share of energy",
        "series": [
            {"name": n, "values": [concentration(m, share) for m in maps.values()]} for n, maps in found.items()
        ],
    }


class _Watch(TorchFunctionMode):
    """Counts layers as they run, and keeps the maps of those wanted."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self.count, self.wanted, self.maps = 0, wanted, dict[int, Tensor]()
        self.spatial = 0  # how many layers give maps
        self._waiting = False  # for the activation of the last layer

    def layer(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.count, self._waiting = self.count + 1, True
        self.spatial += output.dim() == 4
        self._keep(output)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in ACTIVATIONS and self._waiting:
            self._waiting = False
            self._keep(out)
        return out

    def _keep(self, out: Tensor) -> None:
        if self.count in self.wanted:
            self.maps[self.count] = out.detach().clone()  # activations may work in place


def _coloured(picture: Tensor) -> list[list[list[int]]]:
    """A picture [channel, row, column] of any scale as red, green and blue from 0 to 255."""
    low, high = picture.min(), picture.max()
    levels = (255 * (picture - low) / (high - low).clamp_min(1e-12)).round().int()
    three: list[list[list[int]]] = levels.expand(3, -1, -1).permute(1, 2, 0).tolist()
    return three


def _rounded(picture: Tensor) -> list[list[float]]:
    return [[float(f"{v:.4g}") for v in row] for row in picture.tolist()]
