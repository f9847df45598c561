"""`python -m zosam` is `zosam`."""

from zosam.cli import main

main()
