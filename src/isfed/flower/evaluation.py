"""Metrics of agents that may be wrong or hostile: each reply is judged by itself."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common import log

from isfed.flower.array_records import WireError, printable
from isfed.flower.wire_format import METRICS, OWN_METRICS

MOST_WEIGHT = 10.0  # of one agent, in multiples of the median agent's
MOST_NUMBERS = 10_000  # in the metrics of one agent; results keep them for every round
LONGEST_NAME = 100
LONGEST_LINE = 2000  # of metrics in the log


def evaluation_metrics(replies: Iterable[Message], weight: str) -> list[dict[str, Any]]:
    """The metrics of those who sent any; what cannot be averaged is refused and logged."""
    named = [(f"evaluation of node {r.metadata.src_node_id} is", r) for r in replies]
    return _usable(named, weight)


def training_metrics(reported: dict[int, MetricRecord], weight: str) -> list[dict[str, Any]]:
    """The training metrics of agents that sent any beside their score; by agent."""
    named = [
        (f"metrics of agent {agent} are", {n: v for n, v in record.items() if n not in OWN_METRICS})
        for agent, record in reported.items()
    ]
    return _usable([(name, metrics) for name, metrics in named if metrics], weight)


def _usable(named: Iterable[tuple[str, Any]], weight: str) -> list[dict[str, Any]]:
    """Metrics that can be averaged, with the names and lengths that most of them have."""
    usable = []
    for name, source in named:
        try:
            usable.append(
                _checked(_read(source) if isinstance(source, Message) else source, weight)
            )
        except Exception as error:  # whatever a hostile reply can cause
            log(WARNING, "the %s left out: %s", name, printable(error))
    forms = [tuple(sorted((name, np.size(value)) for name, value in m.items())) for m in usable]
    usual, count = max(Counter(forms).items(), key=lambda item: item[1], default=((), 0))
    if count < len(forms):
        log(WARNING, "%s evaluations have other metrics than the rest, and are left out",
            len(forms) - count)  # fmt: skip
    return [metrics for metrics, form in zip(usable, forms, strict=True) if form == usual]


def _read(reply: Message) -> dict[str, Any]:
    if reply.has_error():
        raise WireError(f"error {reply.error.code}, {printable(reply.error.reason)}")
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise WireError(f"expected one record of metrics, got {len(records)}")
    return dict(records[0])


def _checked(metrics: dict[str, Any], weight: str) -> dict[str, Any]:
    """Raise a WireError for what cannot be averaged or printed."""
    if len(metrics) > MOST_NUMBERS or sum(map(np.size, metrics.values())) > MOST_NUMBERS:
        raise WireError(f"more than {MOST_NUMBERS} numbers")
    for name in metrics:  # they end in logs and tables
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise WireError(f"the name {printable(name, 40)!r} is too long, or not printable")
    count = metrics.get(weight)
    if not isinstance(count, int | float) or not (math.isfinite(count) and count > 0.0):
        raise WireError(f"{weight}={printable(count, 40)} must be a number above 0")
    for name, value in metrics.items():
        if not np.isfinite(np.asarray(value, dtype=float)).all():
            raise WireError(f"{printable(name, 40)}={printable(value, 40)} must be finite")
    return metrics


def limited(reported: Sequence[dict[str, Any]], weight: str) -> list[RecordDict]:
    """As records for Flower's functions; nobody counts for more than MOST_WEIGHT median agents."""
    if not reported:
        return []
    counts = sorted(metrics[weight] for metrics in reported)
    # The lower of the two in the middle: their mean would be in the hands of one of two agents.
    most = MOST_WEIGHT * float(counts[(len(counts) - 1) // 2])
    if above := sum(count > most for count in counts):
        log(WARNING, "%s agents say %s above %s times the median; they count as that many",
            above, weight, MOST_WEIGHT)  # fmt: skip
    capped = ({**metrics, weight: min(metrics[weight], most)} for metrics in reported)
    return [RecordDict({METRICS: MetricRecord(metrics)}) for metrics in capped]


def medians(reported: Sequence[dict[str, Any]], weight: str) -> dict[str, float]:
    """The median of every single number over agents: one of them cannot move it far."""
    return {
        f"{name}-median": float(np.median([metrics[name] for metrics in reported]))
        for name in (reported[0] if reported else ())
        if name != weight and np.ndim(reported[0][name]) == 0
    }


def log_metrics(line: str, metrics: Mapping[str, Any] | None) -> None:
    """As Flower's own strategies log them, where there are any; cut, because agents wrote them."""
    if metrics:
        log(INFO, line, printable(metrics, LONGEST_LINE))
