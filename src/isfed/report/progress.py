"""Progress on a terminal as a bar, elsewhere as a plain line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_SECONDS = 10.0  # between plain lines


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rounds/s")


class RunProgress:
    """Told what is done; a round counts for its repetitions in the speed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.repetitions = 1
        self.bar = Progress(
            TextColumn("{task.description:28s}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            _Speed(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = None
        self.name = ""
        self.rounds = self.done = 0
        self.began = self.spoke = time.monotonic()
        self.shown = False

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.shown:
            self.bar.stop()

    def begin(self, name: str, rounds: int, done: int, *, repetitions: int) -> None:
        """Work begins, with `done` of its rounds already there."""
        self.name, self.rounds, self.done, self.repetitions = name, rounds, done, repetitions
        self.began = self.spoke = time.monotonic()
        self.first = done
        work = self.repetitions
        self.task = self.bar.add_task(name, total=rounds * work, completed=done * work)
        if not self.shown and not self.console.is_terminal:
            return
        if not self.shown:
            self.bar.start()
            self.shown = True

    def advance(self, rounds: int) -> None:
        """That many more rounds of all repetitions are done."""
        self.done += rounds
        if self.task is not None:
            self.bar.advance(self.task, rounds * self.repetitions)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.spoke > LINE_SECONDS:
            self.spoke = now
            speed = (self.done - self.first) * self.repetitions / (now - self.began)
            left = (self.rounds - self.done) * self.repetitions / max(speed, 1e-9)
            self.console.print(
                f"{self.name}: round {self.done} of {self.rounds}, {speed:,.0f} rounds/s, "
                f"{left:.0f} s left"
            )
