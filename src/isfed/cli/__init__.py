"""The command line, one file per group of commands; it loads what a command uses when it runs."""

from typing import NoReturn


def main() -> None:
    """Entry point of the console script; the process ends here."""
    import sys

    from isfed.cli.heartbeat import keep_talking
    from isfed.cli.interrupt_exit import leave_on_interrupt

    leave_on_interrupt()  # before anything large is imported
    stopped = keep_talking(sys.argv[1:])
    try:
        from isfed.cli.app import app

        app()
    except SystemExit as end:
        if isinstance(end.code, int):
            _leave(end.code)
        raise
    finally:
        if stopped is not None:
            stopped.set()


def _leave(code: int) -> NoReturn:
    """End at once: taking Numba apart takes a third of a second, on a busy machine ten."""
    import atexit
    import os
    import sys
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # a pipe that nobody reads: Python says so
        sys.exit(code)
    os._exit(code)


__all__ = ["main"]
