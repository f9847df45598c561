"""The kernel tests once more on other builds of the C source: `make test-native`.

    python tests/kernels/native.py [--plain] [--sanitized]

Sanitized: every variant that this CPU runs, under the address and undefined-behaviour sanitizers; also one with the 16
lanes of AVX-512 in the registers that are there. Plain: every variant by every compiler that is found. Both, if
neither is asked for. Needs gcc or clang with its sanitizer runtimes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from zosam.kernels import build

SANITIZE = (
    "-g", "-O1", "-fno-omit-frame-pointer", "-fno-var-tracking", "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)  # fmt: skip
SIXTEEN = ("-DLANES=16", "-Wno-psabi")
TESTS = ("test_operations.py", "test_few_pictures.py", "test_rows.py", "test_accelerate.py")


def runtime(name: str) -> str:
    """The path of a sanitizer runtime; the interpreter itself is not built with one, so it is loaded before it."""
    cc = build.compiler()
    if cc is None:
        raise SystemExit("no C compiler: set CC, or install gcc or clang")
    return subprocess.run([cc, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


def check(title: str, variant: str, flags: tuple[str, ...], more: dict[str, str]) -> None:
    """Run the tests on one build; the first failure ends everything."""
    here = Path(__file__).parent
    build.PATIENCE = 900.0  # sanitizers make the compiler slow
    with tempfile.TemporaryDirectory() as folder:
        library = build.compile_library(variant, Path(folder), flags)
        print(f"{variant}, {title}", flush=True)
        environment = os.environ | more | {"ZOSAM_LIBRARY": str(library), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
        done = subprocess.run([*command, *(str(here / t) for t in TESTS)], env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    asked = sys.argv[1:] or ["--plain", "--sanitized"]
    own = {"CC": os.environ["CC"]} if "CC" in os.environ else {}
    if "--plain" in asked:
        for compiler in filter(shutil.which, ("gcc", "clang")):
            os.environ["CC"] = compiler
            for variant in build.variants():
                check(f"by {compiler}", variant, (), {})
            check(f"by {compiler}, 16 lanes", build.variants()[0], SIXTEEN, {})
        del os.environ["CC"]
        os.environ.update(own)
    if "--sanitized" in asked:
        sanitizers = {
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own, by design
        }
        for variant in build.variants():
            check("under the sanitizers", variant, SANITIZE, sanitizers)
        check("16 lanes, under the sanitizers", build.variants()[0], (*SANITIZE, *SIXTEEN), sanitizers)


if __name__ == "__main__":
    main()
