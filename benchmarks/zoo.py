"""Many kinds of networks with and without the sparse kernels: train step and evaluation, at several batch sizes.

    python benchmarks/zoo.py [vgg unet ...] [--sparsity 0.9 0.95] [--batch 1 8 64] [--rounds 7] [--out zoo.json]

A figure is the median over rounds of the time of the dense network in torch / that of the same network, pruned at
random to the same share in every layer, after `accelerate(model, masks, example)` at that batch size; both take turns,
on one thread, by CPU time. Masks are given as a dict: what a sparse method does around a step is not counted. A train
step is forward, backward and SGD, at learning rate zero, so that weights and masks stay together. Where the kernels
gain nothing they are not there, so no figure should lie below 1 by more than the clock cannot tell; one below 0.97 is
measured again in five times as many rounds, and the last line says the least one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from chart import machine
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, report, restore
from zosam.lab.models import deit_tiny

PIXELS, CLASSES = 32, 10
DOUBTFUL = 0.97  # a ratio below is measured again, in five times as many rounds


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width in (32, 32, 0, 64, 64, 0, 128, 128, 0):
        if width:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            inside = width
        else:
            layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(256, CLASSES)]
    return nn.Sequential(*layers, *head)


class UNet(nn.Module):
    """Two steps down, two up, with skips."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.down1, self.down2 = self.twice(3, width), self.twice(width, 2 * width)
        self.bottom = self.twice(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = self.twice(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join1 = self.twice(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    @staticmethod
    def twice(inside: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        c = self.join2(torch.cat([self.up2(c), b], 1))
        return self.head(self.join1(torch.cat([self.up1(c), a], 1))).mean((2, 3))  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """A block of MobileNet: wider by 1 x 1, depthwise, narrower by 1 x 1."""

    def __init__(self, inside: int, outside: int, stride: int, bend: Callable[[], nn.Module]) -> None:
        super().__init__()
        width = 4 * inside
        self.same = stride == 1 and inside == outside
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), bend(),
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), bend(),
            nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.same else y


def mobilenet() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    inside = 16
    for width, stride, bend in ((24, 2, nn.ReLU6), (24, 1, nn.ReLU6), (48, 2, nn.Hardswish), (48, 1, nn.Hardswish)):
        layers.append(Inverted(inside, width, stride, bend))
        inside = width
    layers += [nn.Conv2d(inside, 192, 1), nn.BatchNorm2d(192), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, CLASSES))


class Next(nn.Module):
    """A block of ConvNeXt: depthwise 7 x 7, then two linear layers over the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.act, self.narrow = nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.narrow(self.act(self.wide(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def convnext() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 48, 2, 2)]
    layers += [Next(48), Next(48), nn.Conv2d(48, 96, 2, 2), Next(96), Next(96)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, CLASSES))


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norm2(x))  # type: ignore[no-any-return]


class Mixer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.Sequential(*(MixerLayer(64, width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))  # type: ignore[no-any-return]


def conv1d() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 8
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1)):
        layers += [nn.Conv1d(inside, width, 5, stride, 2), nn.BatchNorm1d(width), nn.ReLU()]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, CLASSES))


class Recurrent(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, width, 2, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(y[:, -1])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Six of torch's own transformer layers over 128 tokens."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


IMAGE = (3, PIXELS, PIXELS)
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # network, shape of one input
    "vgg": (vgg, IMAGE),
    "unet": (UNet, IMAGE),
    "mobilenet": (mobilenet, IMAGE),
    "convnext": (convnext, IMAGE),
    "mixer": (Mixer, IMAGE),
    "vit": (lambda: deit_tiny(CLASSES, image_size=PIXELS, patch_size=4), IMAGE),
    "conv1d": (conv1d, (8, 256)),
    "lstm": (Recurrent, (24, 32)),
    "encoder": (lambda: Encoder(0.0), (128, 256)),
    "encoder_dropout": (lambda: Encoder(0.1), (128, 256)),
}
LARGE = ("encoder", "encoder_dropout")  # only if asked for


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, fused=True)


def train_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Forward, backward and SGD."""
    optimizer = sgd(model)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def evaluation(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def forward() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return forward


def compare(dense: Callable[[], None], sparse: Callable[[], None], rounds: int) -> float:
    """The median over rounds of one's time / the other's, in turns."""
    clock = time.thread_time
    for function in (dense, sparse, dense):
        start = clock()
        function()
    times = max(1, int(0.04 / max(clock() - start, 1e-6)))  # a round takes long enough for the clock
    ratios = []
    for turn in range(rounds):
        took: dict[bool, float] = {}
        for which in (turn % 2 == 0, turn % 2 == 1):
            start = clock()
            for _ in range(times):
                (sparse if which else dense)()
            took[which] = clock() - start
        ratios.append(took[False] / took[True])
    return median(ratios)


def measure(network: str, sparsity: float, batch: int, rounds: int) -> dict[str, Any]:
    """Both ratios of one network at one batch size, what runs where, and how long accelerate took to find out."""
    build, shape = ZOO[network]
    torch.manual_seed(0)
    dense, model = build(), build()
    masks = {n: torch.rand_like(p) >= sparsity for n, p in model.named_parameters() if p.dim() > 1}
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    x, y = torch.randn(batch, *shape), torch.randint(0, CLASSES, (batch,))
    began = time.perf_counter()
    accelerate(model, masks, x)
    seconds = time.perf_counter() - began
    told = report(model)
    found: dict[str, Any] = {}
    ways = {
        "train": (train_step(dense, x, y), train_step(model, x, y)),
        "eval": (evaluation(dense, x), evaluation(model, x)),
    }
    for way, both in ways.items():
        found[way] = compare(*both, rounds)
        if found[way] < DOUBTFUL:
            found[way] = compare(*both, 5 * rounds)
    restore(model)
    return found | {"seconds to accelerate": seconds, "report": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=[], choices=[*ZOO, []])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = machine() | {"rounds": arguments.rounds, "networks": {}}
    least: list[tuple[float, str]] = []
    print(f"{'dense time / time':24}{'batch':>6}{'train':>8}{'eval':>8}")
    for network in arguments.networks or [name for name in ZOO if name not in LARGE]:
        for sparsity in arguments.sparsity:
            for batch in arguments.batch:
                found = measure(network, sparsity, batch, arguments.rounds)
                record["networks"].setdefault(network, {}).setdefault(f"{sparsity:.0%}", {})[batch] = found
                cells = [f"{found[way]:8.2f}" if way in found else f"{'-':>8}" for way in ("train", "eval")]
                print(f"{network:12}{sparsity:>12.0%}{batch:6}" + "".join(cells), flush=True)
                least += [(found[w], f"{network} {sparsity:.0%} {batch} {w}") for w in ("train", "eval") if w in found]
                if arguments.out is not None:
                    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"least: {min(least)[0]:.2f} ({min(least)[1]})")


if __name__ == "__main__":
    main()
