"""The compiled kernels: shipped with the package, or built once from the C source and kept in a cache.

Three builds of one source differ in vector width only. The widest one that this CPU runs is taken. A library is loaded
only if its checksum, in a file beside it, is right, and from no folder that somebody else may write to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zosam import files
from zosam.machine import cache_folder, cpu_flags

SOURCE = Path(__file__).with_name("kernels.c")
SHIPPED = Path(__file__).with_name("lib")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
LINK = ("-shared", "-fPIC", "-pthread")
PATIENCE = 60.0  # seconds for the compiler, which takes about five

_V3 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def variants() -> list[str]:
    """The builds that this CPU can run, best first."""
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return ["portable"]
    flags = cpu_flags()
    wide = ["x86-64-v4"] if flags >= _V4 else []
    return [*wide, *(["x86-64-v3"] if flags >= _V3 else []), "portable"]


def file_name(variant: str, machine: str = "") -> str:
    """The library of one build; its name carries the hash of source and flags, so no stale one is ever loaded."""
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS + LINK).encode()).hexdigest()[:12]
    return f"zosam-{variant}-{machine or platform.machine().lower()}-{digest}.so"


def compiler() -> str | None:
    """The C compiler: `CC`, or the first of cc, gcc and clang on the path."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return shutil.which(name)
    return None


def compile_library(
    variant: str, folder: Path, extra: tuple[str, ...] = (), machine: str = "", command: tuple[str, ...] = ()
) -> Path:
    """Build one variant into `folder`, with its checksum; what appears there is whole and on the disk.

    `command` is a compiler for another `machine`, with its options.
    """
    cc = command or (compiler() or "",)
    if not cc[0]:
        raise FileNotFoundError("no C compiler: set CC, or install gcc or clang")
    march = () if variant == "portable" else (f"-march={variant}",)
    with tempfile.TemporaryDirectory() as aside:
        made = Path(aside) / "kernels.so"
        _run([*cc, *FLAGS, *(() if command else march), *extra, *LINK, str(SOURCE), "-o", str(made), "-lm"])
        content = made.read_bytes()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / file_name(variant, machine)
    files.write(target, content)
    target.chmod(0o755)
    files.write(_checksum_file(target), hashlib.sha256(content).hexdigest().encode())
    return target


def build_shipped(machine: str, folder: Path = SHIPPED) -> list[Path]:
    """Build every variant for x86_64 or aarch64 beside the package, against glibc 2.17: what a wheel carries.

    It takes the compiler of the package `ziglang`, which brings the old headers and builds for any machine.
    """
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.17", "-s")
    names = [*(["x86-64-v4", "x86-64-v3"] if machine == "x86_64" else []), "portable"]
    marches = {name: () if name == "portable" else (f"-march={name.replace('-', '_')}",) for name in names}
    return [compile_library(name, folder, marches[name], machine, zig) for name in names]


def libraries(reasons: list[str]) -> Iterator[tuple[Path, str]]:
    """Libraries to try, best first, with where they come from: given, shipped or built.

    `ZOSAM_LIBRARY` names one to take instead of looking. Why others are left out is added to `reasons`. The last one is
    built when it is asked for.
    """
    given = os.environ.get("ZOSAM_LIBRARY")
    if given:
        yield Path(given), "given"
        return
    cache = cache_folder() / "kernels"
    for folder, origin in ((SHIPPED, "shipped"), (cache, "built")):
        for path in (folder / file_name(variant) for variant in variants()):
            if path.is_file():
                reason = _damage(path) or (_open_to_others(path) if origin == "built" else "")
                if reason:
                    reasons.append(reason)
                else:
                    yield path, origin
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _open_to_others(cache / "new")
        if reason:
            reasons.append(reason)
        else:
            yield compile_library(variants()[0], cache), "built"
    except (OSError, RuntimeError) as error:
        reasons.append(str(error))


def _damage(path: Path) -> str:
    """What is wrong with a library that lies there: loading half a file ends the process."""
    try:
        right = hashlib.sha256(path.read_bytes()).hexdigest() == _checksum_file(path).read_text().strip()
        return "" if right else f"{path} is damaged"
    except OSError as error:
        return f"{path} is damaged ({error.strerror or error})"


def _open_to_others(path: Path) -> str:
    """Why somebody other than root could put another file in this one's place; empty if nobody could."""
    if os.name != "posix":
        return ""
    folder = path.parent.resolve()
    for place in (path, folder, *folder.parents):
        if not place.exists():
            continue
        status = place.stat()
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if place in folder.parents:  # there a sticky bit is enough, and so is a group of one's own
            if status.st_mode & stat.S_ISVTX:
                shared = 0
            elif status.st_gid == os.getegid():
                shared &= stat.S_IWOTH
        if shared or status.st_uid not in (0, os.geteuid()):
            return f"others may write to {place}: `chmod go-w` it, or set ZOSAM_CACHE to a folder of your own"
    return ""


def _checksum_file(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _run(command: list[str]) -> None:
    """Run the compiler, and end it with all its children if it does not come back."""
    own = {"start_new_session": True} if os.name == "posix" else {}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, **own)  # type: ignore[call-overload]
        try:
            process.wait(PATIENCE)
        except BaseException as error:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"{command[0]} has not come back for {PATIENCE:.0f} s and was ended") from None
            raise
        said.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{said.read().decode(errors='replace').strip()}")
