"""The command line."""


def main() -> None:
    raise SystemExit("zosam: nothing to run yet")
