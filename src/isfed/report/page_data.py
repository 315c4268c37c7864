"""What a report page shows, as plain records: whoever has results makes these."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from isfed.base.text_format import plain_number

HEADING = 12  # characters in a line of a heading that may be narrow
DECIMALS = {"dB": 2, "%": 1, "percentage points": 1}  # by unit; other levels by their digits


class TableCell(NamedTuple):
    """One cell of a table: what it says, and the number it is sorted by if it has one."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class PageTable:
    """A table for the page, the docs and the terminal; its first column names the rows.

    Args:
        caption: what the table shows.
        columns: the headings.
        rows: as many cells in each as there are headings.
        folded: whether only its heading is shown at first, on a page.
        note: below it, in a terminal.
        narrow: whether headings and names may take several lines there, so that it fits.
        foot: how many of the last rows stand below a line there.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    folded: bool = False
    note: str | None = None
    narrow: bool = False
    foot: int = 0

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of {len(row)} cells under {len(self.columns)} headings: {row}"
                )

    @property
    def texts(self) -> list[list[str]]:
        """The cells as they are shown."""
        return [[cell.text for cell in row] for row in self.rows]

    @classmethod
    def of(
        cls, caption: str, columns: Sequence[str], rows: Iterable[Iterable[str | TableCell]],
        **more: Any,
    ) -> PageTable:  # fmt: skip
        """The same, where a cell without a number may be plain text, and the last may be left out.

        Args:
            caption: what the table shows.
            columns: the headings.
            rows: the cells.
            more: the other fields.
        """
        cells = [[TableCell(c) if isinstance(c, str) else c for c in row] for row in rows]
        absent = TableCell("")
        whole = (tuple(row + [absent] * (len(columns) - len(row))) for row in cells)
        return cls(caption, tuple(columns), tuple(whole), **more)

    def __rich__(self) -> Table:
        """For the terminal: names on the left, numbers on the right."""
        table = Table(title=self.caption, caption=self.note)
        table.title_justify = table.caption_justify = "left"
        for place, heading in enumerate(self.columns):
            table.add_column(
                textwrap.fill(heading, HEADING) if self.narrow else heading,
                no_wrap=place == 0 and not self.narrow, justify="right" if place else "left",
                overflow="fold" if self.narrow else "ellipsis",
            )  # fmt: skip
        for left, row in zip(range(len(self.rows), 0, -1), self.texts, strict=True):
            table.add_row(*row, end_section=left == self.foot + 1 > 1)
        return table


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: str = "---") -> str:
    """A table for the docs; `numbers` says how the columns after the first are aligned.

    >>> print(markdown(("a", "b"), [("x|y", "1")], numbers="---:"))
    | a | b |
    | --- | ---: |
    | x\\|y | 1 |
    """
    lines = [columns, ["---", *[numbers] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def level_cell(value: float, error: float | None, unit: str) -> TableCell:
    """A level with its standard error.

    >>> level_cell(-41.234, 0.126, "dB").text
    '−41.23 ± 0.13 dB'
    >>> level_cell(0.0123456, math.nan, "").text, level_cell(4172.3, 680.0, "").text
    ('0.0123', '4,170 ± 700')
    >>> level_cell(91.23, 0.68, "%").text, level_cell(5.8, 0.93, "percentage points").text
    ('91.2 ± 0.7%', '5.8 ± 0.9 percentage points')
    >>> level_cell(2.11, None, "").text  # of one repetition
    '2.11'
    """
    error = math.nan if error is None else error
    if math.isnan(value):
        return TableCell("none")
    if unit in DECIMALS:
        text, spread = (f"{number:.{DECIMALS[unit]}f}" for number in (value, error))
    else:
        text, spread = plain_number(value, 3), plain_number(error, 1)
    text += "" if math.isnan(error) else f" ± {spread}"
    gap = "" if unit in ("", "%") else " "
    return TableCell(f"{text}{gap}{unit}".replace("-", "−"), value)


def number_cell(value: float | None, form: str | None = None) -> TableCell:
    """A number that may be unknown.

    >>> number_cell(30682.4).text, number_cell(77.968).text, number_cell(None).text
    ('30,682', '77.97', 'unknown')
    """
    if value is None or math.isnan(value):
        return TableCell("unknown")
    form = form or (",.0f" if 1e3 <= abs(value) < 1e12 else ".4g")
    return TableCell(f"{value:z{form}}".replace("-", "−"), float(value))


@dataclass(frozen=True, eq=False)
class Series:
    """One curve.

    Args:
        name: of the method.
        x: (T,) where it was measured, for instance the rounds, increasing.
        mean: (T,) the curve; points that are not finite are left out.
        low: (T,) the lower edge of its band.
        high: (T,) the upper edge.
        units: by axis of the figure, the cost of one unit of x, for instance uploads per round.
        colour: curves of one colour belong together; None: a colour of its own.
    """

    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    units: Mapping[str, float] = field(default_factory=dict)
    colour: int | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(getattr(self, name)) for name in ("x", "mean", "low", "high")}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the arrays of {self.name!r} differ in length: {sizes}")

    def finite(self) -> Series:
        """The same without points that cannot be drawn; a band that is not finite is no band."""
        x, mean, low, high = (
            np.asarray(v, dtype=np.float64) for v in (self.x, self.mean, self.low, self.high)
        )
        low, high = (np.where(np.isfinite(v), v, mean) for v in (low, high))
        seen = np.isfinite(x) & np.isfinite(mean)
        return replace(self, x=x[seen], mean=mean[seen], low=low[seen], high=high[seen])


@dataclass(frozen=True, eq=False)
class Figure:
    """Curves over one or several horizontal axes, and the table that goes with them.

    Args:
        title: what the figure shows.
        y_label: the quantity, with its unit.
        axes: label by key, for instance {"rounds": "rounds"}; the first is shown first.
        series: the curves.
        table: the numbers.
        band: what the bands around the curves are.
        logarithmic: how the vertical axis is shown first; None: as the numbers suggest.
        linear_only: whether the reader is not offered a logarithmic axis.
    """

    title: str
    y_label: str
    axes: Mapping[str, str]
    series: tuple[Series, ...]
    table: PageTable
    band: str = ""
    logarithmic: bool | None = None
    linear_only: bool = False

    def __post_init__(self) -> None:
        for series in self.series:
            for key in self.axes:
                unit = series.units.get(key, math.nan)
                if not (math.isfinite(unit) and unit > 0.0):
                    raise ValueError(
                        f"{series.name!r} has no positive unit for the axis {key!r} of "
                        f"{self.title!r}: {unit}"
                    )


@dataclass(frozen=True, eq=False)
class PageData:
    """All that a page shows.

    Args:
        title: its heading.
        summary: what was run, in a sentence or two.
        verdict: the answer, in one sentence.
        advice: what follows from it, a paragraph each.
        next_steps: what to do next, as (sentence, what to type).
        differences: tables to read before the figures.
        figures: each with its table.
        tables: further tables.
        warnings: what the reader must know before trusting the numbers.
        data: what became of the data, as (what, how much); sentences have no name, "".
        configurations: TOML by name of the folder.
        versions: by name of the software.
        commands: what to type to run it again.
    """

    title: str
    summary: str
    verdict: str
    advice: tuple[str, ...] = ()
    next_steps: tuple[tuple[str, str], ...] = ()
    differences: tuple[PageTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[PageTable, ...] = ()
    warnings: tuple[str, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    configurations: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
