"""Times as ratios: all contenders by turns in one process, so that a busy machine slows them alike.

A time is the CPU time of this thread unless a case needs the clock on the wall (several threads);
no time is ever asserted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

Case = Callable[[int], object]  # runs that many rounds
SECONDS = 0.04  # of one case in one try: short, so that both sides of a ratio meet the same load
CHUNK = 0.2  # the same where what a chunk of rounds costs besides its rounds must not count much
TRIES = 41


@dataclass
class Row:
    """One line of the results."""

    part: str
    name: str
    microseconds: float | None = None  # per round, the best of all tries
    against: str = ""
    against_microseconds: float | None = None
    ratio: float | None = None  # of the two, the median over the tries
    spread: tuple[float, float] | None = None  # the least and the greatest of the tries
    note: str = ""


@dataclass
class Report:
    """What was measured so far."""

    quick: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def tries(self) -> int:
        """How often every case runs."""
        return 7 if self.quick else TRIES

    def compare(
        self,
        part: str,
        name: str,
        own: list[float],
        other: str,
        against: list[float],
        *,
        note: str = "",
    ) -> None:
        """Add the ratio of two cases, taken try by try."""
        ratios = [a / b for a, b in zip(own, against, strict=True)]
        row = Row(part, name, min(own) * 1e6, other, min(against) * 1e6, note=note)
        row.ratio, row.spread = median(ratios), (min(ratios), max(ratios))
        self.add(row)

    def add(self, row: Row) -> None:
        """Keep a line and print it."""
        self.rows.append(row)
        print(line(row), flush=True)


def ratio_text(row: Row) -> str:
    """The ratio, with its least and greatest if it was taken more than once."""
    if row.ratio is None:
        return ""
    text = f"{row.ratio:.2f}"
    return f"{text} ({row.spread[0]:.2f}-{row.spread[1]:.2f})" if row.spread else text


def line(row: Row) -> str:
    """One line of plain text."""
    text = f"{row.part:8} {row.name:36}"
    text += f" {row.microseconds:11.3f} us" if row.microseconds is not None else " " * 15
    if row.ratio is not None:
        text += f" = {ratio_text(row):>6} x {row.against}"
    if row.against_microseconds is not None:
        text += f" {row.against_microseconds:.3f} us"
    return f"{text}  {row.note}".rstrip()


def rounds_for(case: Case, seconds: float) -> int:
    """How many rounds of a case take about that long; it has then run for a while."""
    rounds = 1
    while True:
        before = time.process_time()  # not the wall's: a moment without a core is not work
        case(rounds)
        spent = time.process_time() - before
        if spent > seconds / 4:
            return max(1, int(rounds * seconds / spent))
        rounds *= 4


def by_turns(
    cases: Mapping[str, Case],
    report: Report,
    *,
    clock: Callable[[], float] = time.thread_time,
    seconds: float = SECONDS,
) -> dict[str, list[float]]:
    """Seconds per round of every case in every try; the order turns round from try to try."""
    rounds = {name: rounds_for(case, seconds) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(report.tries):
        names = list(cases)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            before = clock()
            cases[name](rounds[name])
            times[name].append((clock() - before) / rounds[name])
    return times


def load() -> str:
    """How busy the machine is."""
    one, five, fifteen = os.getloadavg()
    return f"{os.cpu_count()} cores, load {one:.1f} {five:.1f} {fifteen:.1f}"


def table(report: Report, machine: str) -> str:
    """The results as Markdown."""
    lines = [
        "Ratios are taken try by try, cases by turns in one process: the median, and in brackets",
        f"the least and the greatest of {report.tries} tries. Times are the best. {machine}.",
        "",
        "| part | what | us | against | us | ratio | note |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for row in report.rows:
        times = [
            f"{t:.3f}" if t is not None else ""
            for t in (row.microseconds, row.against_microseconds)
        ]
        cells = (row.part, row.name, times[0], row.against, times[1], ratio_text(row), row.note)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
