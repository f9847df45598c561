"""What will run here: which build of the kernels, where it comes from, and what is missing otherwise."""

from __future__ import annotations

import torch

from . import build, library
from .choose import cpu_name


def doctor() -> list[str]:
    """One line per finding, for people."""
    lib = library.load()
    lines = [f"CPU: {cpu_name()}; builds it can run: {', '.join(build.variants())}"]
    if lib is not None:
        lines.append(f"kernels: {lib.variant}, {lib.lanes} images per vector, {lib.origin}: {lib.path}")
    elif library.disabled():
        lines.append("kernels: switched off by ZOSAM_DENSE, so everything runs dense")
    else:
        path, reason = build.find_library()
        why = reason if path is None else f"{path} is no library of these kernels"
        lines.append(f"kernels: none, so everything runs dense: {why}")
    lines.append(f"compiler: {build.compiler() or 'none found (set CC, or install gcc or clang)'}")
    lines.append(f"cache: {build.cache_folder()}")
    whose = "" if lib is None else ", torch's own" if lib.team[0] else ", in a pool beside torch's"
    lines.append(f"threads: {torch.get_num_threads()}{whose} (torch.set_num_threads changes it for the kernels too)")
    return lines
