"""The command `zosam`, also `python -m zosam`: it lives in the laboratory, which needs more than the library does."""

import sys
from importlib.util import find_spec

NEEDS = ("tyro", "rich", "scipy", "sklearn", "filelock")


def main() -> None:
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.exit(f"zosam: the command needs {', '.join(missing)}, not installed here: pip install 'zosam[lab]'")
    from zosam.lab.cli import main

    main()


if __name__ == "__main__":
    main()
