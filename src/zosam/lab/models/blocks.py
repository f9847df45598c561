"""The two residual blocks that all ResNets here are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def projection(inside: int, outside: int, stride: int) -> nn.Module:
    """The shortcut: nothing where the shape stays, else a 1 x 1 convolution and BatchNorm."""
    if stride == 1 and inside == outside:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class ZeroPad(nn.Module):
    """He's shortcut without weights (option A): every second pixel, the new channels filled with zeros."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        before = self.extra // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before))


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int = 1, *, zero_pad: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        pad = zero_pad and inside != outside
        self.downsample = ZeroPad(inside, outside, stride) if pad else projection(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions, four times wider at the end; the stride sits on the 3 x 3."""

    def __init__(self, inside: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outside = 4 * width
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample = projection(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.downsample(x))


@torch.no_grad()
def he_init(model: nn.Module) -> None:
    """Convolutions from N(0, 2 / fan_out), BatchNorm at scale 1 and shift 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
