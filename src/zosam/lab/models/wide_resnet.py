"""Wide residual networks WRN-d-k: few layers, k times He's widths, BatchNorm and ReLU before each convolution."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from zosam.lab.models.blocks import he_init


class WideBlock(nn.Module):
    """BatchNorm, ReLU, 3 x 3 convolution, twice; a changing shape is projected after the first ReLU."""

    def __init__(self, inside: int, outside: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        same = stride == 1 and inside == outside
        self.downsample = None if same else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(out)
        out = self.dropout(F.relu(self.bn2(self.conv1(out))))
        total: Tensor = self.conv2(out) + shortcut
        return total


class WideResNet(nn.Module):
    """A 3 x 3 stem, three stages of (depth - 4) / 6 blocks, BatchNorm, ReLU, global pooling, linear."""

    def __init__(self, depth: int, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        if depth % 6 != 4 or depth < 10:
            raise ValueError(f"depth must be 6n + 4 (10, 16, 22, 28, 40, ...), not {depth}")
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)

        def stage(inside: int, outside: int, stride: int) -> nn.Sequential:
            first = WideBlock(inside, outside, stride, dropout)
            rest = (WideBlock(outside, outside, 1, dropout) for _ in range((depth - 4) // 6 - 1))
            return nn.Sequential(first, *rest)

        self.layer1 = stage(16, 16 * width, stride=1)
        self.layer2 = stage(16 * width, 32 * width, stride=2)
        self.layer3 = stage(32 * width, 64 * width, stride=2)
        self.bn1 = nn.BatchNorm2d(64 * width)
        self.fc = nn.Linear(64 * width, num_classes)
        he_init(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        logits: Tensor = self.fc(F.relu(self.bn1(out)).mean((2, 3)))
        return logits


def wrn(num_classes: int = 10, depth: int = 28, width: int = 10, dropout: float = 0.0) -> WideResNet:
    """Wide ResNet of any depth 6n + 4 and any width, as in "wrn:depth=16,width=4".

    Zagoruyko, Komodakis: Wide residual networks, BMVC 2016.
    """
    return WideResNet(depth, width, num_classes, dropout)


def wrn28_10(num_classes: int = 10) -> WideResNet:
    """Wide ResNet WRN-28-10 for CIFAR: 36.5 million weights."""
    return WideResNet(28, 10, num_classes, dropout=0.0)
