"""This machine: its CPU, and the folder where the package keeps what it can make again."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch
from torch import Tensor


def cpu_name() -> str:
    """What the CPU calls itself."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """The instruction sets that the CPU offers, by Linux's names; empty where the system does not tell."""
    return set(_cpu_info("flags").split())


def cache_folder() -> Path:
    """Where data sets, built libraries and measurements are kept: `ZOSAM_CACHE`, or the user's cache folder."""
    own = os.environ.get("ZOSAM_CACHE")
    if own:
        return Path(own).expanduser()
    base = Path.home() / "Library/Caches" if sys.platform == "darwin" else Path.home() / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or base) / "zosam"


def _cpu_info(field: str) -> str:
    """A field of the first CPU in /proc/cpuinfo; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def widest(device: torch.device) -> torch.dtype:
    """The most precise numbers that a device has: float64, and float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def double(values: Tensor) -> Tensor:
    """The values in float64, where the device has it."""
    return values.to(widest(values.device))
