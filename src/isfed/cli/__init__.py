"""The command line: the only place where names become objects."""

from isfed.cli.app import main

__all__ = ["main"]
