"""A small residual network for the digits."""

from __future__ import annotations

from torch import Tensor, nn

from zosam.lab.models.blocks import Block


class DigitsNet(nn.Module):
    """Stem, three residual blocks of 32, 32 and 64 channels, global pooling, linear: 96,000 weights."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.blocks = nn.Sequential(Block(32, 32), Block(32, 32), Block(32, 64, stride=2))
        self.head = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def digits_net(num_classes: int = 10) -> DigitsNet:
    """Small residual network for 8 x 8 digits."""
    return DigitsNet(num_classes)
