"""A small residual network for the digits."""

from __future__ import annotations

from torch import Tensor, nn

from zosam.lab.models.blocks import Block


class DigitsNet(nn.Module):
    """Stem, three residual blocks of one, one and two widths of channels, global pooling, linear."""

    def __init__(self, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width), Block(width, width), Block(width, 2 * width, stride=2))
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


def digits_net(num_classes: int = 10, width: int = 32) -> DigitsNet:
    """Small residual network for 8 x 8 digits: 96,000 weights"""
    return DigitsNet(num_classes, width)
