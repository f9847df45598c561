"""The compiled kernels: shipped with the package, or built once from the C source and kept in a cache; then loaded.

Three builds of one source differ in vector width only. The widest one that this CPU runs is taken. A library is loaded
only if its checksum, in a file beside it, is right, and from no folder that somebody else may write to.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from zosam import files
from zosam.machine import cache_folder, cpu_flags, cpu_name

SOURCE = Path(__file__).parent / "c" / "kernels.c"
SHIPPED = Path(__file__).with_name("lib")
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
LINK = ("-shared", "-fPIC", "-pthread")
MOST_SAID = 10_000  # bytes of what a compiler complains of
PATIENCE = 60.0  # seconds for the compiler, which takes about five

Pointer, Integer = ctypes.c_void_p, ctypes.c_int64
# as C numbers its calls
CONV_FORWARD, CONV_BACKWARD, SWEEP, MOVE, BATCH_NORM_FORWARD, BATCH_NORM_BACKWARD, LAYER_NORM = range(7)
PIXEL_CONV, PIXEL_MOVE, PIXEL_POOL, WINDOW, PIXEL_WINDOW = range(7, 12)
MOVE_OUT, MOVE_IN, MOVE_IN_FINITE = range(3)  # the ways of a move

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
    source = b"".join(part.read_bytes() for part in sorted(SOURCE.parent.glob("*.[ch]")))
    digest = hashlib.sha256(source + " ".join(FLAGS + LINK).encode()).hexdigest()[:12]
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
        right = hashlib.sha256(path.read_bytes()).hexdigest().encode()
        return "" if _checksum_file(path).read_bytes().strip() == right else f"{path} is damaged"
    except OSError as error:
        return f"{path} is damaged ({error.strerror or error})"


def _open_to_others(path: Path) -> str:
    """Why somebody other than root could put another file in this one's place; empty if nobody could."""
    place = files.open_to_others(path)
    if place is None:
        return ""
    return f"others may write to {place}: `chmod go-w` it, or set ZOSAM_CACHE to a folder of your own"


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
            raise RuntimeError(f"{' '.join(command)}\n{said.read(MOST_SAID).decode(errors='replace').strip()}")


# --- loading ----------------------------------------------------------------------------------------------------------


def structure(name: str, **fields: str) -> Any:
    """A C structure of pointers, integers and doubles, in the order they are given."""
    kinds = {"pointers": Pointer, "integers": Integer, "doubles": ctypes.c_double}
    members = [(field, kinds[kind]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


class NotFinite(ArithmeticError):
    """An input is infinite or not a number."""


class Library:
    """One loaded build of the kernels: its functions, vector width and origin."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path, self.origin = path, origin
        self.c = ctypes.CDLL(str(path))
        self.c.zk_lanes.restype = Integer
        self.c.zk_variant.restype = ctypes.c_char_p
        self.c.zk_calls.argtypes = [Pointer, Integer]
        self.c.zk_use_team.argtypes = [Pointer, Pointer]
        self.c.zk_strays.argtypes, self.c.zk_strays.restype = [Pointer, Integer], Integer
        self.team = torchs_team()
        self.c.zk_use_team(*self.team)
        self.lanes = int(self.c.zk_lanes())
        self.variant = self.c.zk_variant().decode()

    def call(self, number: int, *arguments: int) -> None:
        """Make one call."""
        words = array("q", (number, *arguments))
        failed = self.c.zk_calls(*words.buffer_info())
        if failed:
            raise failure(failed)


def failure(code: int) -> Exception:
    """What went wrong when calls were made."""
    return NotFinite() if code == 2 else MemoryError("the sparse kernels could not allocate their working memory")


def torchs_team() -> tuple[int, int] | tuple[None, None]:
    """How torch's OpenMP runtime runs a function on its threads, which the kernels share, and numbers them.

    Nothing is linked: the symbols are looked up among the libraries that torch has loaded. None if they are not there.
    """
    try:
        loaded = ctypes.CDLL(torch._C.__file__)
        functions = loaded.GOMP_parallel, loaded.omp_get_thread_num
    except (OSError, AttributeError):  # another kind of runtime, or none
        return None, None
    parallel, number = (int(ctypes.cast(function, Pointer).value or 0) for function in functions)
    return parallel, number


def disabled() -> bool:
    """Whether the user wants no kernels at all: ZOSAM_DENSE is set."""
    return bool(os.environ.get("ZOSAM_DENSE"))


@lru_cache(maxsize=1)
def find() -> tuple[Library | None, list[str]]:
    """The library for this CPU, and why others were passed over."""
    reasons: list[str] = []
    if not disabled():
        for path, origin in libraries(reasons):
            try:
                return Library(path, origin), reasons
            except (OSError, AttributeError) as error:  # not a library, or not one of these kernels
                reasons.append(f"{path} is no library of these kernels ({error})")
    return None, reasons


@lru_cache(maxsize=1)
def load() -> Library | None:
    """The library for this CPU, or None after one warning that says why everything will run dense."""
    lib, reasons = find()
    if lib is None and not disabled():
        why = "; ".join(reasons)
        warnings.warn(f"no sparse kernels, so everything runs dense: {why}", RuntimeWarning, stacklevel=3)
    return lib


def doctor() -> list[str]:
    """What will run here: which build, where it comes from, what is missing otherwise; one line per finding."""
    lib, reasons = find()
    lines = [f"CPU: {cpu_name()}; builds it can run: {', '.join(variants())}"]
    if lib is not None:
        lines.append(f"kernels: {lib.variant}, {lib.lanes} images per vector, {lib.origin}: {lib.path}")
    else:
        lines.append("kernels: none, so everything runs dense" + " (ZOSAM_DENSE is set)" * disabled())
    lines += [f"passed over: {reason}" for reason in reasons]
    lines.append(f"compiler: {compiler() or 'none found (set CC, or install gcc or clang)'}")
    lines.append(f"cache: {cache_folder()}")
    whose = "" if lib is None else ", torch's own" if lib.team[0] else ", in a pool beside torch's"
    lines.append(f"threads: {torch.get_num_threads()}{whose} (torch.set_num_threads changes it for the kernels too)")
    return lines
