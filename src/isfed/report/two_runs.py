"""Two results folders side by side: what differs in configuration, and the curves together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from isfed.report.page_curves import Quantity
from isfed.report.page_data import PageData, PageTable, level_cell
from isfed.report.page_from_results import commands, configuration, flat, ordered, quantity_figure
from isfed.report.page_sentences import summary_line, warnings
from isfed.studies.results_reader import Results

Pair = tuple[Results, Results]
# Settings of a problem that leave it the same: where its file is, and how its agents work.
SAME_PROBLEM = ("file", "data_dir", "local_steps", "batch_size", "passes", "every")


def pair_data(one: Results, other: Results) -> PageData:
    """The page of two folders."""
    pair, labels = (one, other), (one.path.resolve().name, other.path.resolve().name)
    if labels[0] == labels[1]:
        labels = str(one.path), str(other.path)
    named = dict(zip(labels, pair, strict=True))
    changes = list(differences(one.config, other.config))
    known = [{q.key: q for q in ordered(results)} for results in pair]
    shared = [q for key, q in known[0].items() if key in known[1]]
    return PageData(
        title=f"{labels[0]} and {labels[1]}",
        summary=" ".join(f"{n}: {summary_line(r)}" for n, r in named.items()),
        verdict=_verdict(pair, labels, changes, shared),
        differences=(_changes(labels, changes),) if changes else (),
        figures=tuple(
            quantity_figure(quantity, named, _levels(pair, labels, quantity)) for quantity in shared
        ),
        warnings=tuple(f"{n}: {text}" for n, r in named.items() for text in warnings(r)),
        configurations={n: configuration(r) for n, r in named.items()},
        versions=_versions(pair, labels),
        commands=commands(one) + commands(other),
    )


def differences(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The settings in which two configurations differ, as (key, one, other); None: not there.

    >>> list(differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3, "d": 4}}))
    [('b.c', 2, 3), ('b.d', None, 4)]
    """
    left, right = dict(flat(one)), dict(flat(other))
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            yield key, left.get(key), right.get(key)


def _changes(labels: tuple[str, str], changes: list[tuple[str, Any, Any]]) -> PageTable:
    rows = (
        (key, *("not set" if v is None else str(v) for v in values)) for key, *values in changes
    )
    return PageTable.of("What differs in the configuration", ("setting", *labels), rows)


def _verdict(
    pair: Pair, labels: tuple[str, str], changes: list[tuple[str, Any, Any]], shared: list[Quantity]
) -> str:
    """How many settings differ, and where the first quantity moved most."""
    if not changes:
        text = "Both folders hold the same configuration"
    else:
        names = ", ".join(key for key, _, _ in changes[:4]) + (", ..." if len(changes) > 4 else "")
        plural = "setting differs" if len(changes) == 1 else "settings differ"
        text = f"{len(changes)} {plural} ({names})"
    keys = [key.partition(".") for key, _, _ in changes]
    if any(first == "problem" and rest not in SAME_PROBLEM for first, _, rest in keys):
        return f"{text}; the two are about different problems, whose levels cannot be compared."
    moved = [
        (name, *_difference(pair, name, shared[0])) for name in (_common(pair) if shared else [])
    ]
    moved = [row for row in moved if math.isfinite(row[1])]
    if not moved:
        return f"{text}; no algorithm has a level in both."
    clear = [row for row in moved if abs(row[1]) > 2.0 * row[2]]
    if not clear:
        return f"{text}; no algorithm ends elsewhere by more than two standard errors."
    name, change, error = max(clear, key=lambda row: abs(row[1]))
    cell = level_cell(abs(change), error, shared[0].gap_unit).text
    way = "below" if change < 0.0 else "above"
    return (
        f"{text}; {len(clear)} of {len(moved)} algorithms end elsewhere, most of all {name}: "
        f"{cell} {way} in {labels[1]}."
    )


def _common(pair: Pair) -> list[str]:
    there = {a.name for a in pair[1].algorithms}
    return [a.name for a in pair[0].algorithms if a.name in there]


def _difference(pair: Pair, name: str, quantity: Quantity) -> tuple[float, float]:
    """The level in the second folder less that in the first, as of independent runs."""
    (one, error), (other, other_error) = (quantity.level(results[name]) for results in pair)
    return other - one, math.hypot(error, other_error)


def _levels(pair: Pair, labels: tuple[str, str], quantity: Quantity) -> PageTable:
    unknown, common, rows = (math.nan, math.nan), _common(pair), []
    algorithms = [{a.name: a for a in results.algorithms} for results in pair]
    for name in algorithms[0] | algorithms[1]:
        levels = (quantity.level(of[name]) if name in of else unknown for of in algorithms)
        change = _difference(pair, name, quantity) if name in common else unknown
        cells = (level_cell(*level, quantity.unit) for level in levels)
        rows.append((name, *cells, level_cell(*change, quantity.gap_unit)))
    columns = ("algorithm", *labels, f"{labels[1]} less {labels[0]}")
    caption = f"{quantity.level_name}; the errors of differences are those of independent runs"
    return PageTable.of(caption[:1].upper() + caption[1:], columns, rows)


def _versions(pair: Pair, labels: tuple[str, str]) -> dict[str, str]:
    one, other = (results.made_with for results in pair)
    return {
        key: str(one.get(key))
        if one.get(key) == other.get(key)
        else f"{one.get(key)} ({labels[0]}), {other.get(key)} ({labels[1]})"
        for key in dict.fromkeys([*one, *other])
    }
