"""The compiled kernels: shipped with the package, or built once from the C source and kept in a cache.

Three builds of one source differ in vector width only. The widest one that this CPU runs is taken. Without a
shipped library and without a compiler there is none, and the library runs dense.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from zosam.machine import cache_folder, cpu_flags

SOURCE = Path(__file__).with_name("kernels.c")
SHIPPED = Path(__file__).with_name("lib")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
LINK = ("-shared", "-fPIC", "-pthread")

_V3 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def variants() -> list[str]:
    """The builds that this CPU can run, best first."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return ["portable"]
    flags = cpu_flags()
    wide = ["x86-64-v4"] if flags >= _V4 else []
    return [*wide, *(["x86-64-v3"] if flags >= _V3 else []), "portable"]


def file_name(variant: str) -> str:
    """The library of one build; its name carries the hash of source and flags, so no stale one is ever loaded."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS + LINK).encode()).hexdigest()[:12]
    return f"zosam-{variant}-{platform.machine().lower()}-{digest}.so"


def compiler() -> str | None:
    """The C compiler: `CC`, or the first of cc, gcc and clang on the path."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return shutil.which(name)
    return None


def compile_library(variant: str, folder: Path, extra: tuple[str, ...] = ()) -> Path:
    """Build one variant into `folder`; the file appears whole or not at all."""
    cc = compiler()
    if cc is None:
        raise FileNotFoundError("no C compiler: set CC, or install gcc or clang")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / file_name(variant)
    march = () if variant == "portable" else (f"-march={variant}",)
    handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(handle)
    try:
        command = [cc, *FLAGS, *march, *extra, *LINK, str(SOURCE), "-o", name, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr.strip()}")
        Path(name).chmod(0o755)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def build_shipped(folder: Path = SHIPPED) -> list[Path]:
    """Build every variant for this architecture beside the package: what a wheel carries."""
    x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return [compile_library(name, folder) for name in ([*(["x86-64-v4", "x86-64-v3"] if x86 else []), "portable"])]


def find_library() -> tuple[Path | None, str]:
    """The library to load and where it comes from: (path, "given" | "shipped" | "built"), or (None, the reason).

    `ZOSAM_LIBRARY` names one to take instead of looking.
    """
    given = os.environ.get("ZOSAM_LIBRARY")
    if given:
        return Path(given), "given"
    names = variants()
    for folder, origin in ((SHIPPED, "shipped"), (cache_folder(), "built")):
        for variant in names:
            path = folder / file_name(variant)
            if path.is_file():
                return path, origin
    try:
        return compile_library(names[0], cache_folder()), "built"
    except (OSError, RuntimeError) as error:
        return None, str(error)
