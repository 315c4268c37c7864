"""What the commands share: where they print, their options, and how a mistake ends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape

from isfed.cli.interrupt_exit import INTERRUPTED, interrupts_raise

if TYPE_CHECKING:
    from isfed.studies import Results

RUN_FAILED, BAD_USAGE, OUR_FAULT = 1, 2, 70
TRACEBACK = "ISFED_TRACEBACK"  # set it to see where an error comes from

# A pipe has no width of its own; tables then take what they need instead of being cut at 80.
WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
console = Console(width=WIDTH, markup=False)  # names of users' own may have [brackets]
errors = Console(stderr=True)

Out = Annotated[
    Path | None, typer.Option(help="Folder for the results (default: a folder below runs/).")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an unfinished run in the folder, or start one.")
]
Backend = Annotated[
    str | None,
    typer.Option(
        help="Where to run parts of the work in parallel: loky (processes), threading, ray or dask "
        "(default: one part after the other in this process, on all cores)."
    ),
]
Jobs = Annotated[
    int | None, typer.Option(help="How many parts run in parallel (default: one per core).")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results in the folder.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Cores to use (default: all).")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data files (default: $ISFED_DATA).")
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every command that trains: where to write, how long to run, on what."""

    out: Out = None
    resume: Resume = False
    overwrite: Overwrite = False
    rounds: Annotated[int | None, typer.Option(help="Rounds per repetition.")] = None
    repetitions: Annotated[int | None, typer.Option(help="Number of independent repetitions.")] = (
        None
    )
    seed: Annotated[int | None, typer.Option(help="Seed of all random draws.")] = None
    threads: Threads = None
    backend: Backend = None
    jobs: Jobs = None

    @property
    def given(self) -> dict[str, int]:
        """What was asked for in place of the experiment's own numbers."""
        asked = {"rounds": self.rounds, "repetitions": self.repetitions, "seed": self.seed}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def running(self) -> dict[str, Any]:
        """What `run_study` takes."""
        from isfed.studies import Workers

        workers = Workers(backend=self.backend, jobs=self.jobs, threads=self.threads)
        return {"resume": self.resume, "overwrite": self.overwrite, "workers": workers}


def with_options(command: Callable) -> Callable:
    """Let a command take a record of options; Typer sees one parameter for each of its fields."""
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in records:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))
            continue
        types = get_type_hints(records[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default,
                annotation=types[option.name],
            )
            for option in fields(records[name])
        ]  # fmt: skip

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(
                **{option.name: given.pop(option.name) for option in fields(record)}
            )
        command(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}", highlight=False)


@contextlib.contextmanager
def one_line_errors(
    stopped: str = "--resume continues from here", spell: Callable[[str], str] = str
) -> Iterator[None]:
    """A user's mistake or a full disk ends in one line and a code, not in a traceback.

    So does a fault of ours, which is called one. `spell` puts the names that the library uses as
    the command line spells them.
    """
    from isfed.simulate import DivergenceError
    from isfed.studies import StoreError
    from isfed.studies.study_engine import NoStepError
    from isfed.theory.stable_step_size import GrowthWarning

    try:
        with interrupts_raise(), warnings.catch_warnings():
            warnings.simplefilter("always", GrowthWarning)
            warnings.showwarning = _show_warning
            yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        fail(f"stopped; {stopped}", INTERRUPTED)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        known = (StoreError, DivergenceError, NoStepError, FileNotFoundError)
        message, code = _explained(error, known)
        fail(message if isinstance(error, OSError) else spell(message), code)


def _explained(error: Exception, known: tuple[type[Exception], ...]) -> tuple[str, int]:
    """What to say of an error, and the code to end with."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    not_installed = isinstance(error, ImportError) and "pip install" in str(error)  # an extra
    if isinstance(error, known) or not_installed:
        return str(error), RUN_FAILED
    place = _place_in_code_of_users(error)
    if place:
        return f"{what} ({place}; {TRACEBACK}=1 shows how it came there)", RUN_FAILED
    if isinstance(error, ValueError):
        return str(error), BAD_USAGE
    if isinstance(error, MemoryError):
        return f"not enough memory ({error or 'for so many rounds and repetitions'})", RUN_FAILED
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        told = f"{error.strerror or error}{where}; what was saved before is intact"
        return told, RUN_FAILED
    return (
        f"isfed has a fault: {what}; please report it with what {TRACEBACK}=1 prints",
        OUR_FAULT,
    )


def _place_in_code_of_users(error: Exception) -> str:
    """The last line that is neither isfed's nor a library's, or nothing.

    Read from the text, which also has the lines of other processes.
    """
    import isfed

    folders = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed = {Path(path).resolve() for path in (*folders, Path(isfed.__file__).parent)}
    text = "".join(traceback.format_exception(error))
    for name, line, function in reversed(re.findall(r'File "(.+)", line (\d+), in (.+)', text)):
        path = Path(name).resolve()
        if path.is_file() and not installed & {*path.parents}:
            return f"{name}, line {line}, in {function}"
    return ""


@contextlib.contextmanager
def report_long_steps(patience: float = 2.0) -> Iterator[None]:
    """Say on the standard error what takes longer than `patience` seconds, while it does."""
    from isfed.base.progress import listening

    began: dict[str, float] = {}
    last = 0.0

    def listen(what: str) -> None:
        nonlocal last
        now = time.monotonic()
        since = now - began.setdefault(what, now)
        if since > patience and now - last > 10.0:
            last = now
            errors.print(f"{what} ({since:.0f} s so far)", highlight=False, markup=False)

    with listening(listen):
        yield


def end_if_diverged(results: Results) -> None:
    """Exit with a code and a line for every algorithm that diverged."""
    if results.diverged:
        lines = [str(algorithm.summary["diverged"]) for algorithm in results.diverged]
        fail("; ".join(lines), RUN_FAILED)


def fail(message: str, code: int) -> None:
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def print_line(text: str) -> None:
    """One line as it is, without colours."""
    console.print(text, highlight=False)
