"""One self-contained HTML page from what there is to show."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from isfed.base.text_format import counted
from isfed.report.html_markup import Markup, sentence, tag
from isfed.report.page_data import Figure, PageData, PageTable, TableCell
from isfed.report.svg_chart import (
    MOST_BANDS,
    MOST_POINTS,
    ChartCurve,
    can_be_logarithmic,
    chart,
    curves_of,
    first_scale,
)

MOST_BYTES = 300_000
FEWEST_POINTS = 12  # of a curve
ALL_POINTS = 5_000  # of all curves, at about 45 bytes each: a first guess at what fits


def page(data: PageData) -> str:
    """The page: it asks for nothing outside itself, and is complete without its script.

    Where there are very many curves they get fewer points, so that the page stays small.
    """
    curves = sum(len(figure.series) for figure in data.figures)
    most_points = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, curves)))
    while len((text := _page(data, most_points)).encode()) >= MOST_BYTES:
        if most_points == FEWEST_POINTS:
            break  # its tables alone are that large
        most_points = max(FEWEST_POINTS, int(0.8 * most_points))
    return text


def _page(data: PageData, most: int) -> str:
    package = files("isfed.report")
    style, script = (
        package.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    figures = (_figure(f, f"figure-{i}", most) for i, f in enumerate(data.figures, start=1))
    made_with = ", ".join(f"{name} {value}" for name, value in data.versions.items()) or "isfed"
    parts = [
        *(tag("p", sentence(text)) for text in data.advice),
        *(tag("p", sentence(text), class_="warning") for text in data.warnings),
        *_next_steps(data),
        *(_table_section(t) for t in data.differences),
        *figures,
        *(_table_section(t) for t in data.tables),
    ]
    if any(key for key, _ in data.data):
        pairs = ((tag("dt", key), tag("dd", value)) for key, value in data.data)
        parts.append(_section("The data", tag("dl", *(part for pair in pairs for part in pair))))
    elif data.data:
        lines = (tag("li", sentence(line)) for _, line in data.data)
        parts.append(_section("The data", tag("ul", *lines)))
    if data.commands:
        parts.append(
            _section("Run it again", *(_code(c, "Command", wrap=True) for c in data.commands))
        )
    if data.configurations:
        texts = (
            tag("details", tag("summary", name), _code(text, f"Configuration of {name}"))
            for name, text in data.configurations.items()
        )
        parts.append(_section("Configuration", *texts))
    body = (
        tag("header", tag("h1", data.title)),
        tag(
            "main",
            tag("p", sentence(data.verdict), class_="verdict"),
            tag("p", sentence(data.summary), class_="soft"),
            *parts,
        ),
        tag("footer", tag("p", f"Made with {made_with}.", class_="soft")),
        tag("script", Markup(script)),
    )
    # The hashes allow this style and this script and nothing else: no request, no other code.
    hashes = [
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    policy = (
        f"default-src 'none'; img-src data:; style-src '{hashes[0]}'; "
        f"script-src '{hashes[1]}'; base-uri 'none'; form-action 'none'"
    )
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", data.title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(style)),
    )
    whole = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _next_steps(data: PageData) -> list[Markup]:
    """What to do next, each with what to type."""
    parts = [
        part
        for text, code in data.next_steps
        for part in (tag("p", sentence(text)), _code(code, "What to type", wrap=True))
    ]
    return [_section("What to do next", *parts)] if parts else []


def _section(title: str, *parts: str) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _table_section(table: PageTable) -> Markup:
    """A table under a heading, which says what its caption says."""
    shown = _table(table, caption="unseen")
    if table.folded:
        shown = tag("details", tag("summary", counted(len(table.rows), "row")), shown)
    return _section(table.caption, shown)


def _figure(figure: Figure, name: str, most_points: int) -> Markup:
    """The drawing with its controls, and the table below it."""
    curves = curves_of(figure, most_points)
    scale = first_scale(figure, curves)
    table = _table(figure.table)
    if not any(curve.spans for curve in curves):
        reason = tag("p", "No curve can be drawn: there are no finite numbers.", class_="soft")
        return _section(figure.title, reason, table)
    drawing = tag(
        "figure",
        _controls(figure, curves, name, scale),
        tag(
            "p", figure.y_label,
            tag("span", ", logarithmic axis" if scale == "log" else "", class_="scale-note"),
            class_="y-label",
        ),
        chart(figure, curves, name=name, scale=scale),
        _methods(curves, "Methods" if "rounds" in figure.axes else "Curves"),
        tag("p", class_="status unseen", role="status"),
        tag("figcaption", _caption(figure, most_points)),
        aria_labelledby=f"{name}-heading",
    )  # fmt: skip
    heading = tag("h2", figure.title, id=f"{name}-heading")
    return tag("section", heading, drawing, table)


def _caption(figure: Figure, most_points: int) -> str:
    many = len(figure.series) > MOST_BANDS
    few = f", while at most {MOST_BANDS} curves are shown" if many else ""
    sentences = [f"Bands: {figure.band}{few}."] if figure.band else []
    points = max(series.finite().x.size for series in figure.series)
    if points > most_points:
        sentences.append(
            f"Curves of up to {points:,} points are drawn with {most_points}: neighbours are "
            "averaged, and the band around an average covers the bands of all its points."
        )
    return " ".join(sentences)


def _controls(figure: Figure, curves: list[ChartCurve], name: str, scale: str) -> Markup:
    """Which axis, which scale; shown by the script."""
    fields = []
    if len(figure.axes) > 1:
        first = next(iter(figure.axes))
        fields.append(_radios("Horizontal axis", name, "axis", figure.axes, first))
    if can_be_logarithmic(curves):
        scales = {"log": "logarithmic", "linear": "linear"}
        fields.append(_radios("Vertical axis", name, "scale", scales, scale))
    if not fields:
        return Markup("")
    return tag("div", *fields, class_="controls", data_script=True, hidden=True)


def _radios(legend: str, name: str, kind: str, choices: Mapping[str, str], chosen: str) -> Markup:
    def choice(value: str, text: str) -> Markup:
        button = tag(
            "input", type="radio", name=f"{name}-{kind}", value=value, data_for=kind,
            data_label=text, checked=value == chosen, autocomplete="off",
        )  # fmt: skip
        return tag("label", button, text)

    inputs = (choice(value, text) for value, text in choices.items())
    return tag("fieldset", tag("legend", legend), tag("div", *inputs, class_="choices"))


def _methods(curves: list[ChartCurve], legend: str) -> Markup:
    """The key to the curves, which are also switched on and off here."""
    choices = []
    for curve in curves:
        name = curve.series.name
        if not curve.spans:
            choices.append(tag("span", f"{name}: no curve, no finite numbers", class_="soft"))
            continue
        box = tag(
            "input", type="checkbox", value=curve.index, checked=True, autocomplete="off",
            data_script=True, hidden=True,
        )  # fmt: skip
        line = tag("line", x1="0", x2="100%", y1="50%", y2="50%")
        sample = tag("svg", line, class_=f"sample {curve.style}", aria_hidden="true")
        choices.append(tag("label", box, sample, name))
    listed = tag("div", *choices, class_="choices")
    return tag("fieldset", tag("legend", legend), listed, class_="methods")


def _table(table: PageTable, caption: str | None = None) -> Markup:
    kinds = [
        None if any(row[i].value is not None for row in table.rows) else "words"
        for i in range(len(table.columns))
    ]

    def cell(kind: str, cell: TableCell, **attributes: Any) -> Markup:
        value = None if cell.value is None else repr(float(cell.value))
        return tag(kind, cell.text, data_value=value, **attributes)

    headings = (
        tag("th", text, scope="col", class_=kind)
        for text, kind in zip(table.columns, kinds, strict=True)
    )
    rows = (
        tag(
            "tr",
            cell("th", row[0], scope="row"),
            *(cell("td", c, class_=kind) for c, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in table.rows
    )
    parts = (
        tag("caption", tag("span", table.caption, class_=caption)),
        tag("thead", tag("tr", *headings)),
        tag("tbody", *rows),
    )
    whole = tag("table", *parts, class_="sortable")
    return tag("div", whole, class_="scroll", role="region", tabindex="0", aria_label=table.caption)


def _code(text: str, label: str, *, wrap: bool = False) -> Markup:
    # Focusable, because a long line is scrolled by keyboard too.
    kind = "wrap" if wrap else None
    return tag("pre", tag("code", text), class_=kind, tabindex="0", role="region", aria_label=label)
