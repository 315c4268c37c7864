"""Hybrid-FL: Yoshida, Nishio, Morikura, Yamamoto and Yonetani, "Hybrid-FL for Wireless Networks"
(ICC 2020), arXiv 1905.07210. Unconfirmed: no public code was found; what the abstract leaves open
is decided here.

A round of FedCS. A few agents also permit their data to leave them: with the time that the schedule
leaves, the cloud fetches examples of the class of which it has fewest, trains on what it has
gathered for as many steps as an agent, and averages its model in by the number of its examples. For
a regression, the classes are quantiles of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.algorithms.fedcs import FedCS, check_share
from isfed.algorithms.parts import answering
from isfed.base.checks import check_whole
from isfed.base.streams import Purpose
from isfed.problems import Problem


class HybridState(NamedTuple):
    """The model, the examples that the cloud has, and who permits an upload."""

    params: np.ndarray
    gathered: np.ndarray  # (rows,) whether the cloud has each example
    permits: np.ndarray  # (K,)
    classes: np.ndarray  # (rows,) the class of every example


def classes_of(targets: np.ndarray, most: int) -> np.ndarray:
    """(rows,) the class of every target: its value, or its quantile if there are many values."""
    values, classes = np.unique(targets, return_inverse=True)
    if values.size <= most:
        return classes
    edges = np.quantile(targets, np.arange(1, most) / most)
    return np.searchsorted(edges, targets, side="right")


@dataclass(frozen=True, kw_only=True)
class HybridFL(FedCS):
    """Hybrid-FL (unconfirmed: no public code).

    permit: share of the agents that permit their data to be uploaded.
    fetch: the most examples that the cloud fetches in a round.
    num_classes: quantiles of the target that count as classes where the targets have more values.
    server_steps: steps of the cloud's own training; the mean of the E_k of the round unless given.
    server_batch: examples of each of them.
    """

    permit: float = 0.01
    fetch: int = 50
    num_classes: int = 10
    server_steps: int | None = None
    server_batch: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self.permit, name="permit")
        check_whole(self.fetch, name="fetch", least=0)
        check_whole(self.num_classes, name="num_classes", least=1)
        check_whole(self.server_batch, name="server_batch", least=1)
        if self.server_steps is not None:
            check_whole(self.server_steps, name="server_steps", least=0)

    def start(self, agents: Any, params: np.ndarray) -> HybridState:
        """The cloud has no data; a random few permit an upload."""
        super().start(agents, params)
        problem = _problem(agents)
        points = agents.stream(Purpose.CLUSTERS, 0).uniforms(agents.num_agents)
        permits = np.zeros(agents.num_agents, bool)
        permits[np.argsort(points)[: round(self.permit * agents.num_agents)]] = True
        rows = len(problem.data.targets)
        classes = classes_of(problem.data.targets, self.num_classes)
        return HybridState(params.copy(), np.zeros(rows, bool), permits, classes)

    def round(self, state: Any, agents: Any, round_index: int) -> HybridState:
        """A round of FedCS, an upload of data, and the cloud's own steps."""
        asked, active, seconds = self.select_in_time(agents, round_index)
        here = asked[answering(agents, asked, round_index)]
        gathered, seconds = self.fetched(state, agents, here, seconds)
        agents.elapse(seconds)
        params = state.params
        changes = np.empty((0, params.size))
        if active.size:
            changes = self.work(agents, active, params, round_index, timed=False).changes
        weights = agents.sizes[active].astype(float)
        if self.client_weights == "uniform":  # every agent counts as one of the mean size
            weights[:] = agents.sizes.mean()
        rows = np.flatnonzero(gathered)
        if rows.size:
            changes = np.vstack([changes, self._server(state, agents, active, rows, round_index)])
            weights = np.append(weights, rows.size)
        if weights.size:
            params = params + weights @ changes / weights.sum()
        return state._replace(params=params, gathered=gathered)

    def fetched(
        self, state: HybridState, agents: Any, asked: np.ndarray, seconds: float
    ) -> tuple[np.ndarray, float]:
        """What the cloud has after this round's uploads, and when the round then ends."""
        data = _problem(agents).data
        gathered = state.gathered.copy()
        donors = asked[state.permits[asked]]
        if not donors.size or self.fetch == 0:
            return gathered, seconds
        owners = np.repeat(donors, agents.sizes[donors])
        firsts = data.offsets[donors].tolist()
        lasts = data.offsets[donors + 1].tolist()
        rows = np.concatenate([np.arange(a, b) for a, b in zip(firsts, lasts, strict=True)])
        size = data.features.itemsize * data.num_features + data.targets.itemsize
        held = state.classes[np.flatnonzero(gathered)]  # faster than the mask itself
        counts = np.bincount(held, minlength=int(state.classes.max()) + 1)
        free = ~gathered[rows]
        sent = 0
        while free.any() and sent < self.fetch:
            open_rows = np.flatnonzero(free)
            place = open_rows[np.argmin(counts[state.classes[rows[open_rows]]])]
            longer = size / agents.speeds.upload[owners[place]]
            free[place] = False
            if seconds + longer >= self.deadline:
                continue
            seconds += longer
            gathered[rows[place]] = True
            counts[state.classes[rows[place]]] += 1
            sent += 1
        agents.cross(data_up=sent * size)
        return gathered, seconds

    def _server(self, state, agents, active, rows, round_index) -> np.ndarray:
        """The change of the cloud's own model after its steps on what it has gathered."""
        problem = _problem(agents)
        loss, x, y = problem.loss, problem.data.features, problem.data.targets
        steps = self.server_steps
        if steps is None:
            own = self.steps_of(agents, active)
            steps = max(1, round(float(own.mean()))) if active.size else 1
        batch = min(self.server_batch, rows.size)
        points = agents.stream(Purpose.SERVER, round_index).uniforms(steps * batch)
        draws = (points * rows.size).astype(np.int64).reshape(steps, batch)
        model = state.params.copy()
        for draw in draws:
            which = rows if self.full_batch else rows[draw]
            ones = np.ones(which.size)
            model -= self.step_size * loss.gradient(model, x[which], y[which], ones)[0]
        return model - state.params


def _problem(agents: Any) -> Problem:
    problem = getattr(agents, "problem", None)
    if problem is None:
        raise ValueError("Hybrid-FL needs agents in this process: the cloud reads their data")
    return problem
