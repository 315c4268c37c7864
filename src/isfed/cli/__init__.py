"""The command line, one file per group of commands; it loads what a command uses when it runs."""

from isfed.cli.app import main

__all__ = ["main"]
