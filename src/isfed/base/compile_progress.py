"""While Numba compiles: how long it takes, and a word to who waits.

Compiling happens once for each installation, wherever a function is first called. Its time belongs
to no run, so speeds and remaining times are measured on a clock that stands still meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

WORTH_SAYING = 1.0  # seconds


class _Watch(event.Listener):
    """Adds up the time of what is compiled for its own sake, with all that it calls."""

    def __init__(self) -> None:
        self.depth = 0
        self.began = 0.0
        self.total = 0.0
        self.say: Callable[[], None] | None = None

    def on_start(self, event: Any) -> None:
        """A function begins; Numba's lock lets one thread at a time in here."""
        now = time.monotonic()
        if self.depth == 0:
            self.began = now
        self.depth += 1
        if self.say is not None and now - self.began > WORTH_SAYING:
            say, self.say = self.say, None
            say()

    def on_end(self, event: Any) -> None:
        """A function is compiled, or could not be."""
        if self.depth == 1:
            self.total += time.monotonic() - self.began
        self.depth -= 1


_WATCH = _Watch()


@functools.cache
def watch_compilation() -> None:
    """Begin to listen; once is enough."""
    event.register("numba:compile", _WATCH)


def seconds_compiling() -> float:
    """How long this process has been compiling so far."""
    return _WATCH.total + (time.monotonic() - _WATCH.began if _WATCH.depth else 0.0)


def working_clock() -> float:
    """Seconds, like `time.monotonic`, on a clock that stands still while anything is compiled."""
    return time.monotonic() - seconds_compiling()


@contextlib.contextmanager
def announcing(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` if something is compiled meanwhile that takes more than a second, once."""
    before, _WATCH.say = _WATCH.say, say
    try:
        yield
    finally:
        _WATCH.say = before
