"""The kernel tests once more under the address and undefined-behaviour sanitizers: `make test-native`.

    python tests/kernels/native.py [variant ...]

Builds the C source with -fsanitize=address,undefined for each variant that this CPU runs, and runs the tests of the
kernels on that library. Needs gcc or clang with its sanitizer runtimes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from zosam.kernels import build

FLAGS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
TESTS = ("test_region.py", "test_accelerate.py")


def runtime(name: str) -> str:
    """The path of a sanitizer runtime; the interpreter itself is not built with one, so it is loaded before it."""
    cc = build.compiler()
    if cc is None:
        raise SystemExit("no C compiler: set CC, or install gcc or clang")
    return subprocess.run([cc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    here = Path(__file__).parent
    for variant in sys.argv[1:] or build.variants():
        with tempfile.TemporaryDirectory() as folder:
            library = build.compile_library(variant, Path(folder), FLAGS)
            environment = os.environ | {
                "ZOSAM_LIBRARY": str(library),
                "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
                "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own, by design
                "OMP_NUM_THREADS": "1",
            }
            print(f"{variant} under the sanitizers", flush=True)
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
            done = subprocess.run([*command, *(str(here / t) for t in TESTS)], env=environment, check=False)
            if done.returncode:
                raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
