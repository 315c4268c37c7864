"""What the commands share: where they print, their options, and how a mistake ends."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from isfed.experiments import ConfigError, StoreError
from isfed.experiments.steps import NoStepError
from isfed.simulate import DivergenceError
from isfed.theory.stability import GrowthWarning

RUN_FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130

# A pipe has no width of its own; tables then take what they need instead of being cut at 80.
WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
console = Console(width=WIDTH)
errors = Console(stderr=True)

Out = Annotated[
    Path | None, typer.Option(help="Folder for the results (default: a folder below runs/).")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue what is in the folder; start if nothing is.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results in the folder.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of every repetition.")]
Repetitions = Annotated[int | None, typer.Option(help="Independent repetitions.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all draws.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Cores to use (default: all).")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data files (default: $ISFED_DATA).")
]


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}", highlight=False)


@contextlib.contextmanager
def one_line_errors(stopped: str = "--resume continues from here") -> Iterator[None]:
    """A user's mistake or a full disk ends in one line and a code, not in a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", GrowthWarning)
            warnings.showwarning = _show_warning
            yield
    except ConfigError as error:
        fail(str(error), BAD_USAGE)
    except (StoreError, DivergenceError, NoStepError) as error:
        fail(str(error), RUN_FAILED)
    except FileNotFoundError as error:
        fail(str(error), RUN_FAILED)
    except MemoryError:
        fail("not enough memory for so many rounds and repetitions", RUN_FAILED)
    except ValueError as error:
        fail(str(error), BAD_USAGE)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        fail(f"{error.strerror or error}{where}; what was saved before is whole", RUN_FAILED)
    except KeyboardInterrupt:
        fail(f"stopped; {stopped}", INTERRUPTED)


def fail(message: str, code: int) -> None:
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def print_line(text: str) -> None:
    """One line as it is: no colours, no markup."""
    console.print(text, highlight=False, markup=False)
