"""Pages to test with: an ordinary one, one with nasty names, one with far too much on it."""

from __future__ import annotations

import numpy as np

from isfed.report.page_data import Figure, PageData, PageTable, Series, TableCell

AXES = {"rounds": "rounds", "uploads": "models uploaded", "gradients": "gradient evaluations"}
METHODS = (  # name, level, rounds to settle, gradients per round
    ("FedAvg", 0.1, 200.0, 60.0),
    ("ISFedAvg, oracle", 0.0011, 300.0, 90.0),
    ("ISFedAvg, current", 0.002, 300.0, 90.0),
    ("ISFedAvg, running", 0.0012, 300.0, 90.0),
    ("ISFedAvg, memory (ours)", 0.001, 300.0, 95.5),
)
NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]></svg></style></script><!-- & &amp; \x00\x07\ud800",
    "a very long name of a method " * 6,
    "كلمة 漢字 e\u0301 \u202e",
)


def curve(
    name: str, level: float, settle: float, gradients: float, *, points: int = 3000
) -> Series:
    """A curve that falls from about 10 to its level, with noise."""
    rng = np.random.default_rng(len(name))
    x = np.arange(1, points + 1)
    mean = (level + 10.0 * np.exp(-x / settle)) * np.exp(rng.normal(0.0, 0.05, points))
    units = {"rounds": 1.0, "uploads": 6.0, "gradients": gradients}
    return Series(name, x, mean, 0.8 * mean, 1.2 * mean, units=units)


def table(series: tuple[Series, ...]) -> PageTable:
    """The last value of every curve, in decibels, and a column in which one has no number."""
    rows = tuple(
        (
            TableCell(s.name),
            TableCell(f"{10 * np.log10(s.mean[-1]):.2f} ± 0.10", float(10 * np.log10(s.mean[-1]))),
            TableCell("never") if i == 1 else TableCell(f"{100 * (i + 1):,}", 100.0 * (i + 1)),
            TableCell("yes" if i % 2 else "no"),
        )
        for i, s in enumerate(series)
    )
    return PageTable("Last values", ("method", "msd (dB)", "rounds needed", "settled"), rows)


def figure(series: tuple[Series, ...], title: str = "Distance to the optimum", **more) -> Figure:
    """A figure of these curves."""
    return Figure(
        title, "mean-square deviation", AXES, series, table(series),
        band="2 standard errors over 100 repetitions", **more,
    )  # fmt: skip


def ordinary() -> PageData:
    """Two figures: five long curves, and two short ones on a linear axis."""
    long = tuple(curve(*method) for method in METHODS)
    x = np.arange(100.0, 3001.0, 100.0)
    errors = [0.1 + 0.4 * np.exp(-x / (500.0 + 200.0 * i)) for i in range(2)]
    short = tuple(
        Series(m[0], x, e, e - 0.01, e + 0.01, units=long[0].units)
        for m, e in zip(METHODS, errors, strict=False)
    )
    return PageData(
        title="regression",
        summary="Five methods, 3,000 rounds, 100 repetitions.",
        verdict="ISFedAvg with memory ends 20.1 ± 0.2 dB below FedAvg with as many uploads.",
        figures=(figure(long), figure(short, "Test error")),
        warnings=("FedAvg had not settled.",),
        data=(("rows", "20,000"), ("agents", "100, with 3 to 400 rows, median 120")),
        configurations={"config.toml": 'name = "x"\n[problem]\nseed = 3\n' + "long = 1 # " * 30},
        versions={"isfed": "0.1.0"},
        commands=("isfed run runs/regression/config.toml --out again",),
    )


def nasty() -> PageData:
    """Every text is an attack or a burden, and curves hold what cannot be drawn."""
    x = np.arange(1.0, 41.0)
    units = dict.fromkeys(AXES, 1.0)
    values = (
        np.full(40, np.nan),
        np.exp(np.minimum(x, 34.0) * 20.0),  # up to 1e295
        np.full(40, 0.5),
        np.linspace(-1.0, 1.0, 40),
        np.where(x > 20.0, np.inf, x),
    )
    series = tuple(
        Series(name, x, v, v * 0.9, v * 1.1, units=units)
        for name, v in zip(NASTY, values, strict=True)
    )
    cells = tuple((TableCell(name), TableCell(name, float(i))) for i, name in enumerate(NASTY))
    numbers = PageTable(NASTY[0], ("method", NASTY[1]), cells)
    odd = Figure(NASTY[1], NASTY[2], {"rounds": NASTY[0]}, series, numbers, NASTY[0])
    nothing = Figure("nothing", "y", AXES, series[:1], numbers)
    point = Series("point", x[:1], x[:1], x[:1], x[:1], units=units)
    return PageData(
        title=NASTY[2], summary=NASTY[0], verdict=NASTY[1],
        figures=(odd, nothing, figure((point,))), tables=(numbers,), warnings=NASTY,
        data=((NASTY[0], NASTY[1]),),
        configurations={NASTY[0]: NASTY[2]}, versions={NASTY[0]: NASTY[1]}, commands=NASTY,
    )  # fmt: skip


def crowded() -> PageData:
    """Thirty methods in four figures."""
    many = tuple(curve(f"method {i}", 0.001 * (i + 1), 100.0 + i, 60.0) for i in range(30))
    figures = tuple(figure(many, f"Figure {i}") for i in range(4))
    return PageData("crowded", "Thirty methods.", "None is best.", figures=figures)
