"""What the kernel benchmarks share: the machine they ran on, and a bar chart of ratios.

python benchmarks/chart.py results/kernel_speedup.json    # draw what train_step.py has measured once more
"""

from __future__ import annotations

import json
import platform
import sys
from html import escape
from pathlib import Path
from typing import Any

import torch

from zosam.kernels import build
from zosam.machine import cpu_name

WIDE = 560  # pixels: on a phone the letters are still read
NAMES = {"resnet32": "ResNet-32"}


def machine() -> dict[str, Any]:
    """What belongs beside every figure."""
    lib = build.load()
    kernels = f"{lib.variant}, {lib.lanes} images per vector" if lib else "none"
    return {"cpu": cpu_name(), "kernels": kernels, "torch": torch.__version__, "python": platform.python_version()}


def has_bf16() -> bool:
    """Whether this CPU computes in bf16 by itself; elsewhere it is emulated and slow."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def write(path: Path, record: dict[str, Any], charts: dict[str, str]) -> None:
    """The record as JSON, and beside it an SVG for each chart, by the suffix of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    for suffix, chart in charts.items():
        path.with_name(f"{path.stem}{suffix}.svg").write_text(chart)


def step_charts(record: dict[str, Any]) -> dict[str, str]:
    """What benchmarks/train_step.py has measured: a chart for each network and number of threads."""
    charts = {}
    for network, found in record["networks"].items():
        for n in record["threads"]:
            threads = f"{n} thread{'s' * (n > 1)}"
            groups = {}
            for level, each in found["sparsity"].items():
                ratios = {str(k): v for k, v in each["ratio"].items()}[str(n)]
                groups[f"{level.removesuffix('%')} % sparse"] = {k: v for k, v in ratios.items() if k != "dense SGD"}
            title = f"{NAMES.get(network, network)}: a training step, times as fast as dense SGD"
            about = [f"batch {found['batch']}", threads, record["cpu"], record["kernels"].split(",")[0]]
            note = f"{', '.join(about)}, torch {record['torch']}; the dashed line is dense SGD"
            charts[f"-{network}-{threads.replace(' ', '-')}"] = bars(title, note, groups)
    return charts


def bars(title: str, note: str, groups: dict[str, dict[str, float]]) -> str:
    """Horizontal bars in groups, as SVG: on paper of its own, so that it can be read on dark pages, and narrow enough
    for a phone. A line marks 1, where nothing is gained."""
    names = [name for values in groups.values() for name in values]
    left = 22 + 7.2 * max(map(len, names))
    high = max(1.0, *(value for values in groups.values() for value in values.values()))
    scale, y, rows = (WIDE - left - 54) / high, 62, []
    for group, values in groups.items():
        if group:
            rows.append(f'<text x="16" y="{y + 14}" font-weight="600">{escape(group)}</text>')
            y += 24
        one, low = left + scale, y + 22 * len(values) - 2
        rows.append(
            f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{y - 3}" y2="{low}" stroke="#5c6570" stroke-dasharray="2 2"/>'
        )
        for name, value in values.items():
            fill = "#9aa5b1" if "dense" in name else "#2f6f9f"
            rows.append(
                f'<text x="{left - 8:.0f}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
                f'<rect x="{left:.0f}" y="{y}" width="{scale * value:.1f}" height="17" rx="2" fill="{fill}"/>'
                f'<text x="{left + 6 + scale * value:.1f}" y="{y + 13}" stroke="#fff" stroke-width="7" '
                f'paint-order="stroke">{value:.1f}</text>'
            )
            y += 22
        y += 10
    tall = y + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" width="{WIDE}" height="{tall}" '
        f'role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="13" fill="#1b1f24">'
        f'<rect width="{WIDE}" height="{tall}" rx="6" fill="#fff"/>'
        f'<text x="16" y="26" font-weight="600" font-size="14">{escape(title)}</text>'
        f'<text x="16" y="44" font-size="11" fill="#5c6570">{escape(note)}</text>' + "".join(rows) + "</svg>\n"
    )


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        known = json.loads(file.read_text())
        write(file, known, step_charts(known))
