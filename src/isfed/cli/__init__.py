"""The command line, one file per group of commands; it loads what a command uses when it runs."""


def main() -> None:
    """Entry point of the console script."""
    from isfed.cli.interrupt_exit import leave_on_interrupt

    leave_on_interrupt()  # before anything large is imported
    from isfed.cli.app import app

    app()


__all__ = ["main"]
