"""The command line, one file per group of commands; it loads what a command uses when it runs."""


def main() -> None:
    """Entry point of the console script."""
    import sys

    from isfed.cli.heartbeat import keep_talking
    from isfed.cli.interrupt_exit import leave_on_interrupt

    leave_on_interrupt()  # before anything large is imported
    stopped = keep_talking(sys.argv[1:])
    try:
        from isfed.cli.app import app

        app()
    finally:
        if stopped is not None:
            stopped.set()


__all__ = ["main"]
