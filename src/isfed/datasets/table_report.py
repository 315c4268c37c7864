"""What became of the user's table: rows, agents, and the role of every column, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import linalg

from isfed.base.gram_matrix import one_thread
from isfed.base.text_format import counted, typed
from isfed.datasets.table_sources import Source

MEASURED, CODES, CATEGORIES = "measured", "whole numbers", "categories"
TIME, TRUTH, CONSTANT, LEFT_OUT = "time", "true or false", "constant", "left out"
TITLES = {
    MEASURED: "Measured ({})",
    TRUTH: "True or false, as 1 and 0 ({})",
    CATEGORIES: "Categories",
    CODES: "Whole numbers taken as measured; if they are codes, use --categorical",
    TIME: "Dates and times taken as numbers",
    CONSTANT: "Constant and left out",
    LEFT_OUT: "Left out",
}
MOST_CODES = 30  # so many different whole numbers may be the codes of categories
SENTINELS = (-999.0, -9999.0, -99999.0, -99.0, 999.0, 9999.0, 99999.0)
MOST_MISSING = 0.9  # of a column's values: one that lacks more is pointed out
MOST_ROWS = 0.5  # of all: an agent that has more is pointed out
SHOWN = 12  # names in a line
MOST_WORK = 4e9  # rows x columns^2 up to which columns that are sums of others are looked for
CHUNK = 1 << 14  # rows
DEPENDENT = 1e-10  # of a column's squared length: what is left of one that is a sum of others


@dataclass(frozen=True)
class Role:
    """What a column was taken for."""

    name: str
    role: str  # one of `TITLES`
    note: str = ""  # more about it: the levels, the constant
    filled: int = 0  # missing values
    hint: str = ""  # what to look at, and what to type


@dataclass(frozen=True)
class TableReport:
    """What became of a table."""

    rows: int  # that are used
    agents: int
    smallest: int  # rows of an agent ...
    median: float
    largest: int
    few_agents: int  # left out because they have too few rows ...
    few_rows: int  # ... and their rows
    least_rows: int
    roles: list[Role]
    target: str
    filling: str  # what stands for a missing value
    shares: dict[str, float] = field(default_factory=dict)  # of the classes
    span: tuple[float, float] | None = None  # of the target of a regression
    sums: list[str] = field(default_factory=list)  # columns that are sums of others
    incomplete: tuple[int, int] = (0, 0)  # rows left out: without an agent, without a target
    header: str = ""  # what to try if the first line names no columns
    weights: str = "agents"

    def lines(self) -> list[str]:
        """In plain words, a line for each subject."""
        weighing = "every row counts the same"
        if self.weights != "rows":
            weighing = (
                "every agent counts the same, however many rows it has (with --weights rows, "
                "every row counts the same)"
            )
        lines = [
            f"{self.rows} rows of {counted(self.agents, 'agent')} (smallest {self.smallest}, "
            f"median {self.median:g}, largest {self.largest} rows); {weighing}."
        ]
        share = self.largest / self.rows
        if self.agents > 2 and share > MOST_ROWS and self.weights == "agents":
            lines.append(
                f"One agent has {100 * share:.0f}% of the rows and counts as one of {self.agents}; "
                "if rows matter more to you than agents, use --weights rows"
            )
        if self.few_agents:
            lines.append(
                f"Left out: {counted(self.few_agents, 'agent')} with fewer than {self.least_rows} "
                f"rows ({counted(self.few_rows, 'row')})."
            )
        for count, what in zip(self.incomplete, ("an agent", "a target"), strict=True):
            if count:
                lines.append(f"Left out: {counted(count, 'row')} without {what}.")
        if self.header:
            lines.append(f"{self.header[:1].upper()}{self.header[1:]}")
        for role, title in TITLES.items():
            of_role = [each for each in self.roles if each.role == role]
            notes = [typed(r.name) + (f" ({r.note})" if r.note else "") for r in of_role]
            if notes:
                lines.append(f"{title.format(len(notes))}: {listed(notes)}")
        filled = [f"{typed(role.name)} {role.filled}" for role in self.roles if role.filled]
        if filled:
            lines.append(f"Missing values filled with {self.filling}: {listed(filled)}")
        lines += [f"{typed(role.name)}: {role.hint}" for role in self.roles if role.hint]
        if self.sums:
            sums = [typed(name) for name in self.sums]
            lines.append(f"Sums of other columns, which add nothing: {listed(sums)}")
        if self.span:
            return [*lines, f"Target {self.target}: from {self.span[0]:g} to {self.span[1]:g}"]
        shares = [f"{name} {100 * share:.3g}%" for name, share in self.shares.items()]
        return [*lines, f"Target {self.target}, {len(shares)} classes: {listed(shares)}"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        roles = [vars(role) for role in self.roles]
        return {**vars(self), "roles": roles, "lines": self.lines()}


def listed(names: Sequence[str]) -> str:
    """Names in a sentence, of very many the first ones."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def role_of(source: Source, name: str, values: np.ndarray, *, filled: int) -> Role:
    """The role of a column that was taken as numbers, from its values in the file's order."""
    kind = source.column(name).type
    if pa.types.is_temporal(kind):
        dated = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return Role(name, TIME, "days since 1970" if dated else "seconds", filled)
    if pa.types.is_boolean(kind):
        return Role(name, TRUTH, "", filled)
    hint = _sentinel(name, values)
    if pa.types.is_integer(kind):
        different = pc.count_distinct(source.column(name)).as_py()  # type: ignore[attr-defined]
        if not hint and 3 <= different <= MOST_CODES and 2 * different <= values.size:
            return Role(name, CODES, f"{different} different", filled)
    return Role(name, MEASURED, "", filled, hint)


def _sentinel(name: str, values: np.ndarray) -> str:
    """A value such as -999 that lies far from all others."""
    for value in (np.nanmin(values), np.nanmax(values)):
        if value not in SENTINELS:
            continue
        rest = values[(values != value) & ~np.isnan(values)]
        if rest.size and np.abs(rest - value).min() > 2.0 * np.ptp(rest):
            times = int(np.sum(values == value))
            return (
                f"{value:g} occurs {times} times, far from all other values; if it stands for a "
                f"missing one, say --na {value:g}"
            )
    return ""


def dependent(features: np.ndarray, names: Sequence[str], measured: Sequence[int]) -> list[str]:
    """Measured columns that are sums of others and a constant, by their moments."""
    if max(len(features), len(measured)) * len(measured) ** 2 > MOST_WORK or not measured:
        return []
    columns = [*measured]
    mean = features.mean(axis=0)[columns]
    gram = np.zeros((len(columns), len(columns)))
    with one_thread(features):
        for first in range(0, len(features), CHUNK):  # not a second block of that size
            centred = features[first : first + CHUNK, columns] - mean
            gram += centred.T @ centred
    lengths = np.sqrt(np.diag(gram))
    if not np.all(lengths > 0.0):
        return []
    upper, order = linalg.qr(gram / np.outer(lengths, lengths), mode="r", pivoting=True)  # type: ignore[misc]
    left = np.abs(np.diag(upper))
    return sorted(names[columns[int(j)]] for j in order[left < DEPENDENT])
