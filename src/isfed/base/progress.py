"""What a long computation is doing, for whoever shows it; and the time spent compiling.

Compiling belongs to no run: speeds are measured on a clock that stands still meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from numba.core import event

COMPILING = "compiling"
_LISTENER: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Have `listener` called with what is being done, now and then, inside the block.

    >>> with listening(print):
    ...     say("finding the optimum")
    finding the optimum
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def say(what: str) -> None:
    """Tell the listener, if there is one; cheap enough for every pass over the data."""
    _TIMER.latest = what
    listener = _LISTENER.get()
    if listener is not None:
        listener(what)


def doing() -> str:
    """What was said last, or that something is compiled; empty if nothing was said."""
    if not _TIMER.depth:
        return _TIMER.latest
    return f"{COMPILING}, once per installation" if _TIMER.kept else COMPILING


class _CompileTimer(event.Listener):
    """Adds up the time of what is compiled for its own sake, with all that it calls."""

    def __init__(self) -> None:
        self.depth, self.began, self.total = 0, 0.0, 0.0
        self.kept = False  # whether the result goes to a file, for all later runs
        self.latest = ""  # what was said last

    def on_start(self, event: Any) -> None:  # Numba's lock lets one thread at a time in here
        if self.depth == 0:
            self.began = time.monotonic()
            cache = getattr(event.data["dispatcher"], "_cache", None)
            self.kept = getattr(cache, "cache_path", None) is not None
        self.depth += 1

    def on_end(self, event: Any) -> None:
        if self.depth == 1:
            self.total += time.monotonic() - self.began
        self.depth -= 1


_TIMER = _CompileTimer()


@functools.cache
def watch_compilation() -> None:
    """Begin to measure the time that Numba compiles; once is enough."""
    event.register("numba:compile", _TIMER)


def seconds_compiling() -> float:
    """How long this process has been compiling so far."""
    return _TIMER.total + (time.monotonic() - _TIMER.began if _TIMER.depth else 0.0)


def working_clock() -> float:
    """Seconds, like `time.monotonic`, on a clock that stands still while anything is compiled."""
    return time.monotonic() - seconds_compiling()
