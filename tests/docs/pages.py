"""What stands in the documentation: the blocks of every page, and what a reader is taken to have when trying them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: (\S.*) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block, or an indented one, whose language is `indented`."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None
    """Why nobody can run it here, if the page says so in a comment right above it."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every block of code on a page, in order."""
    found, lines, reason, i = [], page.read_text().splitlines(), None, 0
    while i < len(lines):
        start, line, end = i, lines[i], i + 1
        if fence := re.match(r"( *)```(\w*)", line):
            while not re.fullmatch(r" *```", lines[end]):
                end += 1
            code = [text.removeprefix(fence[1]) for text in lines[i + 1 : end]]
            found.append(Block(page, start + 2, fence[2], "\n".join(code), reason))
            end += 1
        elif line.startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(Block(page, start + 1, "indented", "\n".join(t[4:] for t in lines[i:end]), reason))
        if line.strip():
            told = NOT_RUN.fullmatch(line.strip())
            reason = told[1] if told else None
        i = end
    return found


def commands(block: Block) -> list[str]:
    """The commands in a block of shell lines; a line that ends in a backslash goes on in the next."""
    return [line.strip() for line in block.code.replace("\\\n", " ").splitlines() if line.strip()]


def reader() -> dict[str, Any]:
    """What a reader has: torch, a small network, a loader of pictures, one batch, and a number of epochs."""
    digits = load_digits()
    torch.manual_seed(0)
    pictures = torch.tensor(digits.images[:256], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target[:256])
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    loader = DataLoader(TensorDataset(pictures, labels), batch_size=64)
    return {
        "__name__": "__main__", "torch": torch, "nn": nn, "F": F, "model": model, "loader": loader, "epochs": 2,
        "x": pictures[:64], "y": labels[:64],
    }  # fmt: skip
