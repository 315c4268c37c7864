"""`python -m isfed`."""

from isfed.cli.app import main

main()
