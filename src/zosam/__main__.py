"""The command `zosam`, also `python -m zosam`: it lives in the laboratory, which needs more than the library does."""

import os
import sys
from importlib.util import find_spec

NEEDS = ("tyro", "rich", "scipy", "sklearn", "filelock")


def main() -> None:
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.exit(f"zosam: the command needs {', '.join(missing)}, not installed here: pip install 'zosam[lab]'")
    from zosam.lab.cli import main

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # where it has no θ, there is a ?
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read what we print has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
