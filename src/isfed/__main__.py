"""`python -m isfed`."""

from isfed.cli import main

main()
