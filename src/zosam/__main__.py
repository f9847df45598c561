"""`python -m zosam` is `zosam`."""

from zosam.lab.cli import main

main()
