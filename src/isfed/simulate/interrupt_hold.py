"""Ctrl-C in the middle of a chunk waits for the end of the chunk, so that the state stays whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType


@dataclass
class Held:
    """Whether a Ctrl-C came and waits."""

    asked: bool = False


@contextlib.contextmanager
def hold_interrupt() -> Iterator[Held]:
    """Hold back the first Ctrl-C: the caller looks at `asked` later. A second breaks through."""
    held = Held()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return

    def hold(signum: int, frame: FrameType | None) -> None:
        if held.asked:
            raise KeyboardInterrupt
        held.asked = True

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)
