"""A line chart as inline SVG that fits any width without a script.

The curves live in an inner drawing that is stretched to the space there is, with strokes that keep
their width; ticks and labels are placed in per cent, so that text is never stretched. Every curve
is kept in a box of its own (0 to BOX both ways, once for a linear and once for a logarithmic
axis) and moved into place by a transformation: that is all that page.js changes when the reader
picks another axis, another scale or other methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from isfed.report.axis_ticks import limits, linear_ticks, log_ticks, spread
from isfed.report.html_markup import Markup, tag
from isfed.report.page_data import Figure, Series

MOST_POINTS = 300  # of a curve
BOX = 4_000  # of a curve
PLOT = 1_000  # of the stretched drawing
STYLES = 8  # colours, and patterns of dashes; see page.css
LABEL_GAP = 4.8  # per cent of the height between the baselines of two labels
MOST_LABELS = 12  # with more curves than this a label does not say which one it names
MOST_BANDS = 8  # more than these hide the curves
LONGEST_LABEL = 26
DOWN = "0.35em"  # from a baseline to the middle of the text
LOG_FROM = 20.0  # the ratio of largest to smallest from which a logarithmic axis is shown first
Span = tuple[float, float, float]
BAND_BELOW = 0.1  # how far below its lowest mean a band is followed on a logarithmic axis


def downsample(series: Series, most: int = MOST_POINTS) -> Series:
    """At most `most` points: neighbours become one, with their mean and a band around all of them.

    The first and the last point stay as they are. The band of a group reaches from the lowest of
    its bands to the highest, so that a spike in a single round is still seen.

    >>> x = np.arange(1000.0)
    >>> spike = np.where(x == 500, 9.0, 1.0)
    >>> few = downsample(Series("a", x, spike, spike, spike), 100)
    >>> few.x.size, float(few.x[0]), float(few.high.max())
    (100, 0.0, 9.0)
    """
    points = series.x.size
    if points <= most:
        return series
    inner = np.linspace(1, points - 1, most - 1).astype(int)  # the last of them is the last point
    starts = np.concatenate([[0], inner])
    counts = np.diff(np.append(starts, points))

    def means(values: np.ndarray) -> np.ndarray:
        # Scaled first: the sum of values on their way to divergence may overflow.
        return np.add.reduceat(values / np.repeat(counts, counts), starts)

    low, high = np.minimum.reduceat(series.low, starts), np.maximum.reduceat(series.high, starts)
    return replace(series, x=means(series.x), mean=means(series.mean), low=low, high=high)


@dataclass(frozen=True, eq=False)
class ChartCurve:
    """One curve of a chart with its ranges.

    Attributes:
        index: its place in the figure.
        colour: curves of one colour belong together.
        series: at most so many points.
        x: first and last.
        spans: lowest, highest and last value by scale, "linear" and "log", where it can be drawn;
            of "log" as powers of ten.
    """

    index: int
    colour: int
    series: Series
    x: tuple[float, float]
    spans: Mapping[str, Span]

    @property
    def style(self) -> str:
        """The classes of its colour and its dashes."""
        dashes = self.index + self.index // STYLES  # the ninth curve is not the first again
        return f"c{self.colour % STYLES} d{dashes % STYLES}"


def curves_of(figure: Figure, most_points: int = MOST_POINTS) -> list[ChartCurve]:
    """The curves of a figure, ready to draw, each with at most so many points."""
    curves = []
    for index, whole in enumerate(figure.series):
        series = downsample(points := whole.finite(), most_points)
        x, spans = (0.0, 0.0), {}
        if series.x.size:
            x = _widened(float(points.x[0]), float(points.x[-1]), 0.0)[:2]
            spans["linear"] = _widened(
                float(series.low.min()), float(series.high.max()), float(series.mean[-1])
            )
        positive = series.mean[series.mean > 0.0]
        if positive.size and not figure.linear_only:
            lows = series.low[series.low >= BAND_BELOW * positive.min()]
            least = min(float(positive.min()), float(lows.min()) if lows.size else math.inf)
            spans["log"] = _widened(
                math.log10(least),
                math.log10(float(series.high[series.mean > 0.0].max())),
                math.log10(float(positive[-1])),
            )
        colour = index if series.colour is None else series.colour
        curves.append(ChartCurve(index, colour, series, x, spans))
    return curves


def _widened(low: float, high: float, last: float) -> Span:
    """A box that is not empty: a browser draws nothing that is squeezed to zero."""
    room = 0.01 * max(abs(low), abs(high)) or 0.01
    return (low, high, last) if high - low > 1e-9 * room else (low - room, high + room, last)


def first_scale(figure: Figure, curves: list[ChartCurve]) -> str:
    """The scale of the vertical axis until the reader changes it: "log" or "linear"."""
    if not can_be_logarithmic(curves):
        return "linear"
    logarithmic = figure.logarithmic
    if logarithmic is None:
        means = np.concatenate([curve.series.mean for curve in curves])
        logarithmic = means.min() > 0.0 and means.max() > LOG_FROM * means.min()
    return "log" if logarithmic else "linear"


def can_be_logarithmic(curves: list[ChartCurve]) -> bool:
    """Whether every curve that can be drawn has positive values."""
    drawn = [curve for curve in curves if curve.spans]
    return bool(drawn) and all("log" in curve.spans for curve in drawn)


def chart(figure: Figure, curves: list[ChartCurve], *, name: str, scale: str) -> Markup:
    """The drawing of a figure; `name` begins its ids."""
    drawn = [curve for curve in curves if scale in curve.spans]
    axis, label = next(iter(figure.axes.items()))
    low = min((curve.spans[scale][0] for curve in drawn), default=0.0)
    high = max((curve.spans[scale][1] for curve in drawn), default=1.0)
    bottom, top = limits(low, high, logarithmic=scale == "log")
    right = max((curve.series.units[axis] * curve.x[1] for curve in drawn), default=1.0)
    view = _View(bottom, top, right, scale, axis)
    longest = max((len(_short(curve.series.name)) for curve in drawn), default=0)
    room = "narrow" if longest <= 10 else "middling" if longest <= 18 else "roomy"
    return tag(
        "div",
        tag(
            "svg",
            tag("title", figure.title, id=f"{name}-title"),
            tag("desc", _description(figure), id=f"{name}-desc"),
            tag("g", *view.y_ticks(), class_="y-ticks"),
            tag("g", *view.x_ticks(), class_="x-ticks"),
            tag(
                "svg",
                *(_paths(curve, view) for curve in curves if curve.spans),
                class_="curves", width="100%", height="100%", viewBox=f"0 0 {PLOT} {PLOT}",
                preserveAspectRatio="none",
            ),
            tag("g", *_labels(drawn, view), class_="labels"),
            tag("text", label, class_="x-label", x="50%", y="100%", dy="2.6em"),
            class_="plot", role="img", aria_labelledby=f"{name}-title",
            aria_describedby=f"{name}-desc", data_scale=scale, data_axis=axis,
        ),
        class_=f"chart {room}" + (" crowded" if len(drawn) > MOST_BANDS else ""),
    )  # fmt: skip


def _description(figure: Figure) -> str:
    """The figure in words, for those who cannot see it."""
    whole = (series.finite() for series in figure.series)
    ends = [f"{series.name}: {series.mean[-1]:.3g}" for series in whole if series.x.size]
    shown = "; ".join(ends) if ends else "no curve can be drawn"
    return f"Line chart of {figure.y_label}. Last values: {shown}. The table below has the numbers."


class _View(NamedTuple):
    """What part of the plane is shown."""

    bottom: float
    top: float
    right: float
    scale: str
    axis: str

    def matrix(self, curve: ChartCurve) -> str:
        """The transformation of a curve's box into the plot, for the scale that is shown."""
        low, high, _ = curve.spans[self.scale]
        first, last = curve.x
        across = PLOT * curve.series.units[self.axis] / self.right
        up = PLOT / (self.top - self.bottom)
        numbers = (
            across * (last - first) / BOX, 0, 0, up * (high - low) / BOX,
            across * first, up * (self.top - high),
        )  # fmt: skip
        return f"matrix({' '.join(f'{n:.6g}' for n in numbers)})"

    def height(self, value: float) -> float:
        """Where a value is, in per cent from the top."""
        return 100.0 * (self.top - value) / (self.top - self.bottom)

    def y_ticks(self) -> Iterator[Markup]:
        ticks = log_ticks if self.scale == "log" else linear_ticks
        for at, text in ticks(self.bottom, self.top):
            y = f"{self.height(at):.2f}%"
            yield tag("line", x1="0", x2="100%", y1=y, y2=y)
            yield tag("text", text, x="0", y=y, dx="-8", dy=DOWN)

    def x_ticks(self) -> Iterator[Markup]:
        for at, text in linear_ticks(0.0, self.right):
            x = f"{100.0 * at / self.right:.2f}%"
            yield tag("line", x1=x, x2=x, y1="0", y2="100%")
            yield tag("text", text, x=x, y="100%", dy="1.3em")


def _paths(curve: ChartCurve, view: _View) -> Markup:
    """The band and the line of one curve, for both scales."""
    s = curve.series
    across = _boxed(s.x, *curve.x)
    parts, ranges = [], {}
    for scale, span in curve.spans.items():
        seen = s.mean > 0.0 if scale == "log" else np.ones(s.x.size, dtype=bool)
        values = [v[seen] for v in (s.mean, s.low, s.high)]
        if scale == "log":
            values = [np.log10(np.maximum(v, 10.0 ** span[0])) for v in values]
        x, (mean, low, high) = across[seen], [BOX - _boxed(v, span[0], span[1]) for v in values]
        band = ""
        if np.any(low != high):
            edge = np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]])
            band = tag("path", class_="band", d=_path(*edge) + "z")
        line = tag("path", class_="line" if x.size > 1 else "line dot", d=_path(x, mean))
        transform = view.matrix(curve) if scale == view.scale else None
        parts.append(tag("g", band, line, class_=scale, transform=transform))
        ranges[f"data_{scale}"] = " ".join(map(repr, span))
    units = " ".join(f"{axis}={unit!r}" for axis, unit in s.units.items())
    return tag(
        "g", *parts, class_=f"series {curve.style}", data_index=curve.index,
        data_x=" ".join(map(repr, curve.x)), data_units=units, **ranges,
    )  # fmt: skip


def _boxed(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Whole numbers from 0 to BOX."""
    # Halved, because the difference of two numbers on their way to divergence may overflow.
    share = (0.5 * values - 0.5 * low) / (0.5 * high - 0.5 * low)
    return np.rint(BOX * np.clip(share, 0.0, 1.0)).astype(int)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """A path in whole numbers, each point by its distance from the one before."""
    steps = zip(np.diff(x).tolist(), np.diff(y).tolist(), strict=True)
    rest = "l" + " ".join(f"{dx} {dy}" for dx, dy in steps) if x.size > 1 else "h0"
    return f"M{x[0]} {y[0]}{rest}".replace(" -", "-")


def _short(name: str) -> str:
    """A long name without its middle: where names differ is mostly at one of the ends."""
    return name if len(name) <= LONGEST_LABEL else f"{name[:15].rstrip()}…{name[-10:].lstrip()}"


def _labels(drawn: list[ChartCurve], view: _View) -> Iterator[Markup]:
    """The names at the ends of the curves."""
    wanted = [view.height(curve.spans[view.scale][2]) for curve in drawn]
    too_many = len(drawn) > MOST_LABELS
    places = wanted if too_many else spread(wanted, LABEL_GAP)
    for curve, y in zip(drawn, places, strict=True):
        yield tag(
            "text", _short(curve.series.name), class_=f"c{curve.colour % STYLES}",
            data_index=curve.index, x="100%", y=f"{y:.2f}%", dx="8", dy=DOWN, hidden=too_many,
        )  # fmt: skip
