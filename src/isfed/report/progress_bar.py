"""Progress on a terminal as a bar, elsewhere as a plain line now and then."""

from __future__ import annotations

import time

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

from isfed.base.progress import working_clock

LINE_SECONDS = 10.0  # between plain lines


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rounds/s")


class RunProgress:
    """Told what is done, in rounds, each counted once for every repetition."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description:28s}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            _Speed(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            get_time=working_clock,
        )
        self.task = None
        self.name = ""
        self.work = self.done = self.first = 0
        self.total = self.finished = self.fresh = 0  # of all stages; fresh: done since the start
        self.began = self.started = working_clock()
        self.spoke = time.monotonic()  # who waits, waits while anything is compiled too
        self.shown = False

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self.bar.stop()

    def expect(self, work: int) -> None:
        """All stages together are about that much work."""
        self.total = work

    def _left(self) -> float | None:
        """Seconds that all stages will still take."""
        here = self.finished + self.done
        new = self.fresh + self.done - self.first
        spent = working_clock() - self.started
        if not self.total or new <= 0:
            return None
        return max(0.0, self.total - here) * spent / new

    def begin(self, name: str, work: int, done: int) -> None:
        """Work begins, with `done` of it already there."""
        self.finished += self.done
        self.fresh += self.done - self.first
        self.name, self.work, self.done, self.first = name, work, done, done
        self.began = working_clock()
        self.task = self.bar.add_task(name, total=work, completed=done)
        if not self.shown and self.console.is_terminal:
            self.bar.start()
            self.shown = True
        # Here too: many stages that are shorter than that would otherwise go by in silence.
        self._speak()

    def advance(self, work: int) -> None:
        """That much more is done."""
        self.done += work
        if self.task is not None:
            self.bar.advance(self.task, work)
            left = self._left()
            if left is not None:
                self.bar.update(self.task, description=f"{self.name} ({_time(left)} left in all)")
        self._speak()

    def _speak(self) -> None:
        """A line where there is no bar, if the last one was a while ago."""
        now = time.monotonic()
        if self.console.is_terminal or now - self.spoke <= LINE_SECONDS:
            return
        self.spoke = now
        done = f"{100 * self.done / max(self.work, 1):.0f}% of {self.work:,} rounds"
        self.console.print(
            f"{self.name}: {done} (of all repetitions){self._pace()}", highlight=False
        )

    def _pace(self) -> str:
        """The speed of this stage and the time left; nothing before its first round is done."""
        new, spent = self.done - self.first, working_clock() - self.began
        if new <= 0 or spent <= 0.0:
            return ""
        overall = self._left()
        said = f"{(self.work - self.done) * spent / new:.0f} s left in this stage"
        said = said if overall is None else f"{_time(overall)} left in all"
        return f", {new / spent:,.0f} rounds/s, {said}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60:.0f} min"
