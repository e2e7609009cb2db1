"""`python -m seepage.cli` is `seepage`."""

from seepage.cli import main

main()
