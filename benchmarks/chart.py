"""What the kernel benchmarks share: the machine they ran on, and a bar chart of ratios."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from zosam.kernels import library
from zosam.machine import cpu_name


def machine() -> dict[str, Any]:
    """What belongs beside every figure."""
    lib = library.load()
    kernels = f"{lib.variant}, {lib.lanes} images per vector" if lib else "none"
    return {"cpu": cpu_name(), "kernels": kernels, "torch": torch.__version__, "python": platform.python_version()}


def has_bf16() -> bool:
    """Whether this CPU computes in bf16 by itself; elsewhere it is emulated and slow."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def write(path: Path, record: dict[str, Any], charts: dict[str, tuple[str, dict[str, float]]]) -> None:
    """The record as JSON, and beside it an SVG for each chart: suffix of its name -> (title, values)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    for suffix, (title, values) in charts.items():
        path.with_name(f"{path.stem}{suffix}.svg").write_text(bars(title, values))


def bars(title: str, values: dict[str, float]) -> str:
    """A horizontal bar chart as SVG."""
    high, room, left = max(values.values()), 420, 20 + 7 * max(map(len, values))
    rows = []
    for i, (name, value) in enumerate(values.items()):
        y, wide = 40 + 24 * i, room * value / high
        fill = "#9aa5b1" if "dense" in name else "#2f6f9f"
        rows.append(
            f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{name}</text>'
            f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="16" fill="{fill}"/>'
            f'<text x="{left + 6 + wide:.1f}" y="{y + 12}">{value:.2f}</text>'
        )
    size = f'width="{left + room + 60}" height="{60 + 24 * len(values)}"'
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}><text x="10" y="22">{title}</text>'
    return head + "".join(rows) + "</svg>\n"
