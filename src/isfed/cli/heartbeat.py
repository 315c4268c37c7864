"""Words while a command works: within a second of its start, and then every few seconds.

Whatever the command writes itself counts; only silence is filled, on the standard error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

TALKING = ("compare", "diagnose", "leaderboard", "predict", "report", "reproduce", "run")
FIRST, AGAIN, LOOK = 0.4, 3.0, 0.1  # seconds of silence before the first word, the next, a look
LOADING = "loading"


class Heartbeat:
    """Says what a command is doing where it has been silent for too long."""

    def __init__(
        self, write: Callable[[str], object], clock=time.monotonic, processor=time.process_time
    ) -> None:
        self.write, self.clock, self.processor = write, clock, processor
        self.patience = FIRST
        self.what, self.since = "", clock()
        self.heard = self.since  # when anything was last written

    def listen(self, stream: object) -> None:
        """From now on, what is written to a stream counts."""
        write = stream.write  # type: ignore[attr-defined]

        def noted(text: str) -> int:
            self.patience, self.heard = AGAIN, self.clock()
            return write(text)

        stream.write = noted  # type: ignore[attr-defined]

    def look(self) -> None:
        """Say what is being done, if it is time to."""
        now, what = self.clock(), current_work()
        if what != self.what:
            self.what, self.since = what, now
        if now - self.heard < self.patience:
            return
        spent = now - self.since
        long = f"{what} ({spent:.0f} s so far{self._why(spent)})\n"
        self.write(long if spent >= AGAIN else f"{what} ...\n")
        self.patience, self.heard = AGAIN, now

    def _why(self, spent: float) -> str:
        """Why libraries load slowly: it takes two seconds of a processor that others may use."""
        used = self.processor()
        if self.what != LOADING or used > spent / 2:
            return ""
        return f", {used:.1f} s of them on a processor: the machine is busy"


def current_work() -> str:
    """What the command does now; as long as nothing has said so, it is loading."""
    progress = sys.modules.get("isfed.base.progress")  # not imported here: it loads Numba
    return getattr(progress, "doing", str)() or LOADING


def keep_talking(arguments: list[str]) -> threading.Event | None:
    """Fill the silence of a command that computes, until the event is set; None for others."""
    if not arguments or arguments[0] not in TALKING or "--help" in arguments:
        return None
    # Without the locks of Python's own stream, which a thread must not hold when Python ends.
    heartbeat = Heartbeat(lambda text: os.write(2, text.encode()))
    for stream in (sys.stdout, sys.stderr):
        heartbeat.listen(stream)
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(LOOK):
            heartbeat.look()

    threading.Thread(target=beat, daemon=True).start()
    return stopped
