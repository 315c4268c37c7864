"""The catalogue of methods as a table, as Markdown beside the paper's Table 1, and as JSON."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isfed.methods.catalogue import CATALOGUE, Entry
from isfed.methods.over_network import network_support
from isfed.report.page_data import markdown
from isfed.studies.config_schema import REQUIRED
from isfed.studies.name_registry import METHODS

HEADINGS = {
    "name": "method",
    "paper": "paper",
    "selects": "whom it selects",
    "steps": "how it steps",
    "combines": "how it combines",
    "minimises": "what it really minimises",
    "needs": "what it needs to know",
    "unbiased": "unbiased",
    "network": "over a network",
}
NON, PARTIAL, ASYNC = "**non-IID**", "**partial**", "**asynchronous**"
# The paper's Table 1; bold is what it marks as a challenge of federated learning.
TABLE_1 = (
    ("LocalGD", "dist. gradient descent", "convex", NON, "synchronous", "full", "smooth"),
    ("LocalSGD, StichSGD", "dist. SGD", "convex", "IID", "synchronous", "full", "smooth"),
    ("CooperativeSGD and its special cases, KAVG", "dist. SGD", "non-convex", "IID", "synchronous",
     "full", "smooth"),
    ("RestartedSGD", "dist. SGD", "non-convex", f"{NON}; IID", f"synchronous; {ASYNC}", "full",
     "-"),
    ("AdaptiveTau", "dist. SGD", "convex", NON, "synchronous", "full", "bounded gradients"),
    ("MomentumSGD", "dist. momentum SGD", "non-convex", NON, "synchronous", "full", "-"),
    ("FedAsync", "FedAvg", "convex, some non-convex", NON, ASYNC, "full", "-"),
    ("FedAvgScheme", "FedAvg", "convex", NON, "synchronous", PARTIAL, "bounded gradients"),
    ("FedProx", "FedProx", "non-convex", NON, ASYNC, PARTIAL, "-"),
    ("HierFAVG", "HierFAVG", "convex, non-convex", NON, "synchronous", "full", "-"),
    ("Mocha", "MOCHA", "convex", NON, "synchronous", "full", "-"),
    ("DynamicFedAvg", "Dynamic FedAvg", "convex", NON, ASYNC, PARTIAL, "model drift"),
    ("ISFedAvg", "ISFedAvg", "convex", NON, ASYNC, PARTIAL, "importance sampling"),
)  # fmt: skip
WIDE = 180  # columns of a terminal; in fewer, the words of a table would be cut
TABLE_1_HEADINGS = (
    "here", "algorithm", "function type", "data", "operation", "participation", "other assumptions",
)  # fmt: skip


def entries() -> list[Entry]:
    """The catalogue, and what else is registered with what its documentation says."""
    known = {entry.name for entry in CATALOGUE}
    others = [
        Entry(
            name=name, paper="see its documentation", selects="-", steps="-", combines="-",
            minimises=(inspect.getdoc(factory) or "-").splitlines()[0], needs="-", unbiased="-",
        )
        for name, factory in METHODS.items()
        if name not in known
    ]  # fmt: skip
    return [replace(entry, network=_network(entry.name)) for entry in (*CATALOGUE, *others)]


def _network(name: str) -> str:
    """Whether a method runs on Flower, with its default options; unknown if it needs others."""
    options = {"step_size": 0.1, "num_active": 1, "steps": 1, "strong": 1.0, "shift": 2.0}
    known = METHODS.options(METHODS[name])
    required = {key for key, argument in known.items() if argument.default is REQUIRED}
    if not required <= set(options):
        return "-"
    return network_support(METHODS[name](**{key: options[key] for key in required}))


def select(words: Sequence[str], *, unbiased: bool = False, network: bool = False) -> list[Entry]:
    """The entries in which all words occur, in any case.

    Args:
        words: parts of words; none selects all entries.
        unbiased: only methods whose mean update is that of full participation.
        network: only methods that run on Flower.
    """
    return [
        entry
        for entry in entries()
        if all(any(w.lower() in getattr(entry, key).lower() for key in HEADINGS) for w in words)
        and (not unbiased or entry.unbiased.startswith("yes"))
        and (not network or entry.network.startswith("yes"))
    ]


def constructor(name: str) -> str:
    """How a method is made: required arguments bare, the others with their defaults."""
    kind: Any = METHODS[name]
    made = {
        field.name: field.default_factory
        for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        if field.default_factory is not dataclasses.MISSING
    }

    def shown(key: str, default: Any) -> str:
        if default is inspect.Parameter.empty:
            return key
        called = getattr(made.get(key), "__name__", "")  # of a class: Memory()
        value = made[key]() if key in made else default
        return f"{key}={called}()" if called.isidentifier() else f"{key}={value!r}"

    arguments = inspect.signature(METHODS[name]).parameters.items()
    return f"{name}({', '.join(shown(key, argument.default) for key, argument in arguments)})"


def as_json(listed: Sequence[Entry] | None = None) -> str:
    """A list of records, one for each method."""
    chosen = entries() if listed is None else listed
    records = [asdict(entry) | {"constructor": constructor(entry.name)} for entry in chosen]
    return json.dumps(records, indent=1)


def for_terminal(width: int) -> RenderableType:
    """A table, or in a terminal that is too narrow for it the same as a list."""
    return as_table() if width >= WIDE else as_list(entries())


def as_list(listed: Sequence[Entry]) -> Group:
    """One method after the other: its constructor, and a line for each column of the table."""
    parts: list[RenderableType] = []
    for entry in listed:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column()
        for key in list(HEADINGS)[1:]:
            grid.add_row(f"  {HEADINGS[key]}", Text(getattr(entry, key)))
        grid.add_row("  constructor", Text(constructor(entry.name)))
        parts += [Text(entry.name, style="bold"), grid, Text()]
    return Group(*parts)


def as_table() -> Table:
    """For a wide terminal, with the paper below the name."""
    keys = list(HEADINGS)[2:]
    table = Table("method and paper", *(HEADINGS[key] for key in keys), show_lines=True)
    for entry in entries():
        name = Text(f"{entry.name}\n{entry.paper}")
        name.stylize("bold", 0, len(entry.name))
        table.add_row(name, *(Text(getattr(entry, key)) for key in keys))
    return table


def as_markdown() -> str:
    """The generated part of docs/appendix/methods.md."""
    listed = entries()[: len(CATALOGUE)]

    def columns(*keys: str) -> str:
        rows = ([getattr(entry, key) for key in keys] for entry in listed)
        return markdown([HEADINGS[key] for key in keys], rows)

    unconfirmed = "**unconfirmed**: no public code was found"
    parts = [
        "## Selection, local steps and combination",
        columns("name", "paper", "selects", "steps", "combines"),
        "## What it really minimises",
        columns("name", "minimises", "needs", "unbiased", "network"),
        "## The paper's Table 1",
        "What the papers assume, as the paper lists it; bold are what it calls the challenges of "
        "federated learning.",
        markdown(TABLE_1_HEADINGS, TABLE_1),
        "## Independent confirmations",
        "Read side by side with public code, rule by rule; nothing is copied.",
        markdown(
            ("method", "confirmed by reading"),
            ((entry.name, entry.confirmed or unconfirmed) for entry in CATALOGUE),
        ),
    ]
    return "\n\n".join(parts) + "\n"
