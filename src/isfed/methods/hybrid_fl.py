"""Hybrid-FL: Yoshida, Nishio, Morikura, Yamamoto and Yonetani, "Hybrid-FL for Wireless Networks"
(ICC 2020), arXiv 1905.07210. Unconfirmed: no public code was found; what the abstract leaves open
is decided here.

A round of FedCS. A few agents also permit their data to leave them: with the time that the schedule
leaves, the cloud fetches examples of the class of which it has fewest, trains on what it has
gathered for as many steps as an agent, and averages its model in by the number of its examples. For
a regression, the classes are quantiles of the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import weighted_sum
from isfed.base.random_streams import Purpose
from isfed.methods.fedcs import Deadline, InTime
from isfed.methods.method_protocol import Count, CountOrZero, ZeroToOne
from isfed.methods.shared_fields import Sampled, answering
from isfed.problems import Problem
from isfed.problems.compiled_losses import batch_gradient


class HybridState(NamedTuple):
    """The model, the examples that the cloud has, and those that it may still fetch."""

    params: np.ndarray
    gathered: np.ndarray  # (rows,) whether the cloud has each example
    left: np.ndarray  # (K,) how many of its examples an agent permits to fetch and has not sent
    classes: np.ndarray  # (rows,) the class of every example
    held: np.ndarray  # the examples that the cloud has, in the order of the rows
    counts: np.ndarray  # how many it has of each class


def classes_of(targets: np.ndarray, most: int) -> np.ndarray:
    """(rows,) the class of every target: its value, or its quantile if there are many values."""
    values, classes = np.unique(targets, return_inverse=True)
    if values.size <= most:
        return classes
    edges = np.quantile(targets, np.arange(1, most) / most)
    return np.searchsorted(edges, targets, side="right")


@dataclass(frozen=True, kw_only=True)
class HybridFL(Sampled):
    """Hybrid-FL: as FedCS, and some agents also send examples, on which the cloud trains.

    Unconfirmed: there is no public code to compare it with.

    Args:
        deadline: virtual seconds per round, as in `FedCS`.
        permit: share of the agents that permit their data to be uploaded.
        fetch: the most examples that the cloud fetches in a round.
        num_classes: quantiles of the target that count as classes if there are more values.
        server_steps: steps of the cloud's own training; the mean E_k of the round unless given.
        server_batch: examples of each of them.
    """

    deadline: Deadline = math.inf
    permit: ZeroToOne = 0.01
    fetch: CountOrZero = 50
    num_classes: Count = 10
    server_steps: CountOrZero | None = None
    server_batch: Count = 10
    reads_problem: ClassVar[str] = "its cloud trains on examples that agents send"

    @cached_property
    def sampler(self) -> InTime:
        """That of FedCS."""
        return InTime(self.num_active, self.deadline, self.local(timed=False))

    def start(self, agents: Any, params: np.ndarray) -> HybridState:
        self.sampler.init(agents.facts(), agents, params)
        problem = _problem(agents)
        points = agents.stream(Purpose.CLUSTERS, 0).uniforms(agents.num_agents)
        permits = np.argsort(points, kind="stable")[: round(self.permit * agents.num_agents)]
        left = np.zeros(agents.num_agents, np.int64)
        left[permits] = agents.sizes[permits]
        rows = len(problem.data.targets)
        classes = classes_of(problem.data.targets, self.num_classes)
        counts = np.zeros(int(classes.max()) + 1, np.int64)
        none = np.empty(0, np.int64)
        return HybridState(params.copy(), np.zeros(rows, bool), left, classes, none, counts)

    def round(self, state: Any, agents: Any, round_index: int) -> HybridState:
        facts, params = agents.facts(self.client_weights), state.params
        asked, cohort, seconds = self.sampler.select(facts, agents, round_index)
        here = asked[answering(agents, asked, round_index)]
        state, seconds = self.fetched(state, agents, here, seconds)
        agents.elapse(seconds)
        work = self.sampler.local.work(cohort, facts, round_index)
        updates = agents.train(cohort, params, work, round_index)
        active, rows = cohort.agents[updates.place], state.held
        models = active.size + (1 if rows.size else 0)
        if not models:
            return state
        changes, weights = np.empty((models, params.size)), np.empty(models)
        changes[: active.size] = updates.change
        # Unless by size, every agent counts as one of the mean size.
        mean_size = agents.sizes.sum() / agents.num_agents
        weights[: active.size] = mean_size if facts.weight is None else facts.mass[active]
        if rows.size:
            changes[-1] = self._server(state, agents, active, rows, round_index)
            weights[-1] = rows.size
        return state._replace(params=params + weighted_sum(weights, changes) / weights.sum())

    def fetched(
        self, state: HybridState, agents: Any, asked: np.ndarray, seconds: float
    ) -> tuple[HybridState, float]:
        """The state after this round's uploads of data, and when the round then ends."""
        data = _problem(agents).data
        donors = asked[state.left[asked] > 0]
        if not donors.size or self.fetch == 0:
            return state, seconds
        owners = np.repeat(donors, agents.sizes[donors])
        firsts = data.offsets[donors].tolist()
        lasts = data.offsets[donors + 1].tolist()
        rows = np.concatenate([np.arange(a, b) for a, b in zip(firsts, lasts, strict=True)])
        size = data.features.itemsize * data.num_features + data.targets.itemsize
        gathered, left, counts = state.gathered.copy(), state.left.copy(), state.counts.copy()
        sent, seconds = _fetch(
            (rows, owners), state.classes, size / agents.speeds.upload,
            (seconds, float(self.deadline), self.fetch), gathered, left, counts,
        )  # fmt: skip
        agents.charge_messages(data_up=sent * size)
        held = np.flatnonzero(gathered)
        return HybridState(state.params, gathered, left, state.classes, held, counts), seconds

    def _server(self, state, agents, active, rows, round_index) -> np.ndarray:
        """The change of the cloud's own model after its steps on what it has gathered."""
        steps = self.server_steps
        if steps is None:
            own = self.sampler.local.steps(active, agents.facts())
            steps = max(1, round(float(own.sum() / own.size))) if active.size else 1
        batch = min(self.server_batch, rows.size)
        points = agents.stream(Purpose.SERVER, round_index).uniforms(steps * batch)
        draws = (points * rows.size).astype(np.int64).reshape(steps, batch)
        which = np.repeat(rows[None], steps, axis=0) if self.full_batch else rows[draws]
        model = state.params.copy()
        _descend(_problem(agents), model, which, float(self.step_size))
        return model - state.params


@compiled
def _fetch(rows_of, classes, longer, limits, gathered, left, counts):
    """Example after example of the class of which there are fewest, while time is left."""
    rows, owners = rows_of
    seconds, deadline, most = limits
    free = np.empty(rows.size, np.bool_)
    for i in range(rows.size):
        free[i] = not gathered[rows[i]]
    sent = 0
    while sent < most:
        best, least = -1, 0
        for i in range(rows.size):
            if free[i] and (best < 0 or counts[classes[rows[i]]] < least):
                best, least = i, counts[classes[rows[i]]]
        if best < 0:
            break
        owner = owners[best]
        if seconds + longer[owner] >= deadline:  # nor will it be in time later in this round
            for i in range(rows.size):
                free[i] = free[i] and owners[i] != owner
            continue
        free[best] = False
        seconds += longer[owner]
        gathered[rows[best]] = True
        left[owner] -= 1
        counts[classes[rows[best]]] += 1
        sent += 1
    return sent, seconds


def _descend(problem: Problem, model: np.ndarray, which: np.ndarray, step_size: float) -> None:
    """One step for every row of `which`, on the examples that it names; the model is moved."""
    loss, x, y = problem.loss, problem.data.features, problem.data.targets
    if hasattr(loss, "compiled"):
        _compiled_steps(loss.compiled, x, y, which, step_size, model)
        return
    for rows in which:
        model -= step_size * loss.gradient(model, x[rows], y[rows], np.ones(rows.size))[0]


@compiled
def _compiled_steps(loss, features, targets, which, step_size, model):
    num = which.shape[1]
    out = (np.empty(model.size), np.empty(0), np.empty(loss.num_rows))
    examples, ones = (features, targets, np.empty(0), np.empty(0)), np.ones(num)
    for step in range(which.shape[0]):
        batch_gradient(loss, model, examples, 0, which[step], ones, num, False, out)
        for j in range(model.size):
            model[j] -= step_size * out[0][j]


def _problem(agents: Any) -> Problem:
    problem = getattr(agents, "problem", None)
    if problem is None:
        raise ValueError("Hybrid-FL needs agents in this process: the cloud reads their data")
    return problem
