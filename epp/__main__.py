"""`python -m epp`."""

from epp.cli import main

main()
