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

from isfed.flower.array_records import WireError, shown
from isfed.flower.wire_format import METRICS, OWN_METRICS

MOST_WEIGHT = 10.0  # of one agent, in multiples of the median agent's
MOST_NUMBERS = 10_000  # in the metrics of one agent; results keep them for every round
LONGEST_NAME = 100
LONGEST_LINE = 2000  # of metrics in the log


def readable(replies: Iterable[Message], weight: str) -> list[dict[str, Any]]:
    """The metrics of those who sent any; what cannot be averaged is refused and logged."""
    found = []
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            if reply.has_error():
                raise WireError(f"error {reply.error.code}, {shown(reply.error.reason)}")
            found.append(_metrics(reply.content, weight))
        except Exception as error:  # whatever a hostile reply can cause
            log(WARNING, "the evaluation of node %s is left out: %s", node, shown(error))
    return _alike(found)


def judged(told: dict[int, MetricRecord], weight: str) -> list[dict[str, Any]]:
    """The training metrics of agents that sent any beside their score; by agent."""
    found = []
    for agent, record in told.items():
        metrics = {name: value for name, value in record.items() if name not in OWN_METRICS}
        if not metrics:
            continue
        try:
            found.append(_metrics(RecordDict({METRICS: MetricRecord(metrics)}), weight))
        except Exception as error:  # whatever a hostile reply can cause
            log(WARNING, "the metrics of agent %s are left out: %s", agent, shown(error))
    return _alike(found)


def _metrics(content: RecordDict, weight: str) -> dict[str, Any]:
    records = [record for record in content.values() if isinstance(record, MetricRecord)]
    if len(records) != 1:
        raise WireError(f"expected one record of metrics, got {len(records)}")
    metrics = dict(records[0])
    if len(metrics) > MOST_NUMBERS or sum(map(np.size, metrics.values())) > MOST_NUMBERS:
        raise WireError(f"more than {MOST_NUMBERS} numbers")
    for name in metrics:  # they end in logs and tables
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise WireError(f"the name {shown(name, 40)!r} is too long, or not of printable signs")
    count = metrics.get(weight)
    if not isinstance(count, int | float) or not (math.isfinite(count) and count > 0.0):
        raise WireError(f"{weight}={shown(count, 40)} must be a number above 0")
    for name, value in metrics.items():
        if not np.isfinite(np.asarray(value, dtype=float)).all():
            raise WireError(f"{shown(name, 40)}={shown(value, 40)} must be finite")
    return metrics


def _alike(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with the names and lengths that most of them have."""
    forms = [tuple(sorted((name, np.size(value)) for name, value in m.items())) for m in found]
    if not forms:
        return []
    usual, _ = Counter(forms).most_common(1)[0]
    if len(set(forms)) > 1:
        others = sum(form != usual for form in forms)
        log(WARNING, "%s evaluations have other metrics than the rest, and are left out", others)
    return [metrics for metrics, form in zip(found, forms, strict=True) if form == usual]


def limited(found: Sequence[dict[str, Any]], weight: str) -> list[RecordDict]:
    """As records for Flower's functions; nobody counts for more than MOST_WEIGHT median agents."""
    if not found:
        return []
    counts = sorted(metrics[weight] for metrics in found)
    # The lower of the two in the middle: their mean would be in the hands of one of two agents.
    most = MOST_WEIGHT * float(counts[(len(counts) - 1) // 2])
    above = sum(metrics[weight] > most for metrics in found)
    if above:
        log(WARNING, "%s agents say %s above %s times the median; they count as that many",
            above, weight, MOST_WEIGHT)  # fmt: skip
    return [
        RecordDict({METRICS: MetricRecord({**metrics, weight: min(metrics[weight], most)})})
        for metrics in found
    ]


def medians(found: Sequence[dict[str, Any]], weight: str) -> dict[str, float]:
    """The median of every single number over agents: one of them cannot move it far."""
    return {
        f"{name}-median": float(np.median([metrics[name] for metrics in found]))
        for name in (found[0] if found else ())
        if name != weight and np.ndim(found[0][name]) == 0
    }


def log_metrics(line: str, metrics: Mapping[str, Any] | None) -> None:
    """As Flower's own strategies log them, where there are any; cut, because agents wrote them."""
    if metrics:
        log(INFO, line, shown(metrics, LONGEST_LINE))
