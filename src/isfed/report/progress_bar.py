"""Progress on a terminal as a bar, elsewhere as a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping

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

from isfed.base.progress import say, working_clock

LINE_SECONDS = 3.0  # between plain lines
TRUST = 0.1  # of all work


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
        self.work = self.done = self.new = 0  # of this stage; new: done since it began
        # Of all stages, in seconds as they were expected.
        self.total = self.done_in_all = self.new_in_all = 0.0
        self.rates: Mapping[str, float] = {}
        self.began = self.started = working_clock()
        self.last_line = time.monotonic()  # who waits, waits while anything is compiled too
        self.shown = False

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self.bar.stop()

    def expect(self, seconds: float, rates: Mapping[str, float]) -> None:
        """All stages together take about so long.

        Args:
            seconds: from the first round on.
            rates: seconds of a round in stages whose names begin so; their mean in others.
        """
        self.rates, self.total = rates, seconds

    def _usual(self) -> float:
        return sum(self.rates.values()) / len(self.rates) if self.rates else 1.0

    def _rate(self) -> float:
        """What a round of this stage costs."""
        known = [name for name in self.rates if self.name.startswith(name)]
        return self.rates[max(known, key=len)] if known else self._usual()

    def _left(self) -> float | None:
        """Seconds that all stages will still take."""
        if not self.total or not self.new_in_all:
            return None
        # What was expected counts as much as a tenth of the work: the first rounds say little.
        trust = TRUST * self.total
        pace = (working_clock() - self.started + trust) / (self.new_in_all + trust)
        return max(0.0, self.total - self.done_in_all) * pace

    def begin(self, name: str, work: int, done: int) -> None:
        """Work begins, with `done` of it already there."""
        self.name, self.work, self.done, self.new = name, work, done, 0
        say(name)
        if not self.new_in_all:  # what is computed before the first round says nothing of rounds
            self.started = working_clock()
        self.done_in_all += done * self._rate()
        self.began = working_clock()
        self.task = self.bar.add_task(name, total=work, completed=done)
        if not self.shown and self.console.is_terminal:
            self.bar.start()
            self.shown = True
        # Here too: many stages that are shorter than that would otherwise go by in silence.
        self._print_line()

    def advance(self, work: int) -> None:
        """That much more is done."""
        self.done += work
        self.new += work
        self.done_in_all += work * self._rate()
        self.new_in_all += work * self._rate()
        if self.task is not None:
            self.bar.advance(self.task, work)
            left = self._left()
            if left is not None:
                self.bar.update(self.task, description=f"{self.name} ({_time(left)} left in all)")
        self._print_line()

    def _print_line(self) -> None:
        """A line where there is no bar, if the last one was a while ago."""
        now = time.monotonic()
        if self.console.is_terminal or now - self.last_line <= LINE_SECONDS:
            return
        self.last_line = now
        done = f"{100 * self.done / max(self.work, 1):.0f}% of {self.work:,} rounds"
        self.console.print(
            f"{self.name}: {done} (of all repetitions){self._pace()}", highlight=False
        )

    def _pace(self) -> str:
        """The speed of this stage and the time left; nothing before its first round is done."""
        spent = working_clock() - self.began
        if self.new <= 0 or spent <= 0.0:
            return ""
        left = f"{(self.work - self.done) * spent / self.new:.0f} s left in this stage"
        overall = self._left()
        left = left if overall is None else f"{_time(overall)} left in all"
        return f", {self.new / spent:,.0f} rounds/s, {left}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60:.0f} min"
