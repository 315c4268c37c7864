"""Commands in forks of this process, which has loaded and compiled everything: a start is free.

A fork is what a process is once its libraries are loaded: it has the handlers of the console
script, works on the same files and is killed in the same way. It also says what it is doing (in
memory that it shares with us), and can be killed at a file operation or in the middle of a write,
which no clock would hit. Checkpoints are written every 20
milliseconds of work instead of every two seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import COMMANDS, LONGEST, files_of

PHASES = (
    "reading the input", "tuning", "running", "writing a checkpoint", "writing the results",
    "drawing and writing the report",
)  # fmt: skip
READING, TUNING, RUNNING, CHECKPOINT, RESULTS, REPORT = range(len(PHASES))
READY, PHASE, TOUCHED = 0, 1, 2  # bytes of the shared memory; the last is a number of four
TOUCHES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
DRAWN_ONE_IN = 4  # forks that really draw: Matplotlib takes longer than all the rest

_shared = mmap.mmap(-1, 16)


@dataclass(frozen=True)
class Death:
    """What a fork does to itself: a signal before a file operation, or no byte beyond a size."""

    before: int = 0  # which operation below the folder, from 1
    by: int = signal.SIGKILL
    beyond: int = 0  # bytes of the largest file


class Fork:
    """A command that runs in a fork."""

    def __init__(
        self, words: Sequence[str], place: Path, out: Path, death: Death | None = None,
        *, draw: bool = True, prepare: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.errors = place / f"errors-{time.monotonic_ns()}"
        self.returncode: int | None = None
        self.computed = 0.0
        _shared[:6] = bytes(6)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _live(words, place, out, self.errors, death, draw, prepare)
        while not _shared[READY] and self.poll() is None:
            time.sleep(0.0005)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._take(os.WNOHANG)
        return self.returncode

    def _take(self, how: int) -> None:
        pid, status, used = os.wait4(self.pid, how)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)
            self.computed = used.ru_utime + used.ru_stime

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def finish(self, seconds: float = LONGEST) -> str:
        """Wait for the end; returns what it wrote as errors."""
        until = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self._take(0)
            raise TimeoutError("a command did not end")
        text = self.errors.read_text(errors="replace") if self.errors.exists() else ""
        self.errors.unlink(missing_ok=True)
        return text


def phase() -> str:
    """What the last fork was doing."""
    return PHASES[_shared[PHASE]]


def touched() -> int:
    """How many file operations below its folder the last fork made."""
    return int.from_bytes(_shared[TOUCHED : TOUCHED + 4], "little")


def _live(words, place, out, errors, death, draw, prepare) -> None:
    """The life of a fork, which never returns."""
    code = 70
    try:
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        # Hooks and limits in the fork alone: this process goes on without them.
        sys.addaudithook(_watch(os.fspath(out.resolve()), death or Death()))
        if death is not None and death.beyond:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it otherwise
            resource.setrlimit(resource.RLIMIT_FSIZE, (death.beyond, death.beyond))
        if prepare is not None:
            prepare()
        from isfed.cli.app import app
        from isfed.cli.interrupt_exit import leave_on_interrupt

        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a process of its own ...
        leave_on_interrupt()  # ... and as the console script begins
        _shared[READY] = 1
        try:
            with contextlib.nullcontext() if draw else sketched():
                app(list(words), prog_name="isfed")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _shared[READY] = 1
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _watch(below: str, death: Death) -> Callable[[str, tuple], None]:
    """Counts the file operations below a folder, and ends the process before one of them."""

    def hook(event: str, given: tuple) -> None:
        if event not in TOUCHES or not isinstance(given[0], str | bytes | os.PathLike):
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & WRITES):
            return
        if not os.path.abspath(os.fsdecode(given[0])).startswith(below):
            return
        number = touched() + 1
        _shared[TOUCHED : TOUCHED + 4] = number.to_bytes(4, "little")
        if number == death.before:
            os.kill(os.getpid(), death.by)

    return hook


FIGURES = (("isfed.report.figures", "msd_figure"),)


@contextlib.contextmanager
def sketched() -> Iterator[None]:
    """Draw no figures: Matplotlib takes longer than all the rest."""
    drawn = []
    for name, figure in FIGURES:
        module = importlib.import_module(name)
        drawn.append((module, figure, getattr(module, figure)))
        setattr(module, figure, lambda results: None)
    try:
        yield
    finally:
        for module, figure, function in drawn:
            setattr(module, figure, function)


def _during(number: int, then: int | None = None) -> Callable[[Callable], Callable]:
    """Marks the time inside a function as a phase, and afterwards the one before it or `then`."""

    def around(function: Callable) -> Callable:
        def call(*given: Any, **more: Any) -> Any:
            before = _shared[PHASE]
            if not (number == RUNNING and before == TUNING):
                _shared[PHASE] = number
            try:
                return function(*given, **more)
            finally:
                _shared[PHASE] = before if then is None else then

        return call

    return around


def prepare(place: Path) -> dict[str, tuple[float, int]]:
    """Load, compile and mark the phases; for every command what it computes and how often it
    touches a file, undisturbed."""
    from isfed.simulate import run_driver
    from isfed.studies import (
        executors,
        paired_step_search,
        results_folder,
        step_grid,
        study_engine,
        work_cells,
    )

    search = paired_step_search.PairedSearch
    search.losses = _during(TUNING)(search.losses)  # type: ignore[method-assign]
    step_grid.search_step_size = _during(TUNING)(step_grid.search_step_size)
    executors.Executor.run = _during(RUNNING)(executors.Executor.run)  # type: ignore[method-assign]
    work_cells.save_arrays = _during(CHECKPOINT)(work_cells.save_arrays)
    results_folder.Folder.replace = _during(RESULTS)(results_folder.Folder.replace)  # type: ignore[method-assign]
    study_engine.load_results = _during(RESULTS, then=REPORT)(study_engine.load_results)
    run_driver.LEAST_BETWEEN, run_driver.MOST_SHARE = 0.02, 10.0
    work_cells.CHUNK_SECONDS = 0.02

    from damage import in_process  # which uses this module

    found = {}
    for name, words in COMMANDS.items():
        out = place / "warm"
        for alone in (False, True):  # here, so that every fork has what was loaded; then in a fork
            shutil.rmtree(out, ignore_errors=True)
            if alone:
                fork = Fork([*words, "--out", str(out)], place, out, draw=False)
                errors, code = fork.finish(), fork.returncode
                found[name] = (fork.computed, touched())
            else:
                code, errors = in_process([*words, "--out", str(out)], place)
            if code:
                raise RuntimeError(f"{name} failed undisturbed: {errors[-500:]}")
        if not files_of(out):
            raise RuntimeError(f"{name} left nothing behind")
    return found
