"""Ctrl-C at the command line: one line and code 130, whenever it comes.

While libraries load, nothing is written yet and an exception could be swallowed by any of them:
there the process leaves at once. While a command works, KeyboardInterrupt is raised as usual, so
that a checkpoint is saved and processes are stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"error: stopped\n")
    os._exit(INTERRUPTED)


def leave_on_interrupt() -> None:
    """From now on Ctrl-C ends the process, unless it is ignored (as in the background)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextlib.contextmanager
def interrupts_raise() -> Iterator[None]:
    """Inside the block Ctrl-C raises KeyboardInterrupt again."""
    mine = signal.getsignal(signal.SIGINT) is _leave
    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, _leave)
