"""What every method does, in words: catalogue.toml, read for `isfed methods` and the docs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, NamedTuple

HEARD = "only those heard"
CANDIDATES = "asks candidates"
ALL = "all agents in every round"
ORACLE = "the solution"


class Knob(NamedTuple):
    """An option of a method that a comparison may tune.

    Attributes:
        name: the field of the method.
        low: the smallest value.
        high: the largest value.
        scale: how values are tried between them; "share of K" is a whole number, a share of all
            agents but at least L.
    """

    name: str
    low: float
    high: float
    scale: Literal["log", "linear", "whole", "share of K"] = "log"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method.

    Attributes:
        name: what a configuration calls it, and the name to import.
        paper: who, when, where.
        selects: whom it selects in a round.
        steps: what the selected agents do.
        combines: how the cloud makes one model of it.
        minimises: the objective whose minimiser, or the fixed point, it really goes to.
        needs: what it must know besides a step size and the number of agents of a round.
        unbiased: whether the mean update is that of full participation; if not, why.
        confirmed: against which public implementation, by reading; empty if against none.
        network: whether it runs on Flower, and if not why.
        hears: what it must hear of agents in a round: `HEARD`, `CANDIDATES`, `ALL` or `ORACLE`.
            Methods of different classes are not ranked together.
        state: what the cloud keeps from round to round, in numbers.
        knobs: what a comparison may tune besides the step size: two at most.
    """

    name: str
    paper: str
    selects: str
    steps: str
    combines: str
    minimises: str
    needs: str = "nothing"
    unbiased: str = "yes"
    confirmed: str = ""
    network: str = "-"
    hears: str = HEARD
    state: str = "M"
    knobs: tuple[Knob, ...] = ()


def _entries() -> Iterator[Entry]:
    text = resources.files("isfed.methods").joinpath("catalogue.toml").read_text("utf-8")
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)
    words = tables.pop("words")
    for name, table in tables.items():
        knobs = tuple(Knob(*knob) for knob in table.pop("knobs", ()))
        said = {field: value.format_map(words) for field, value in table.items()}
        yield Entry(name=name, knobs=knobs, **said)


CATALOGUE = tuple(_entries())
