"""Cooperative SGD: Wang and Joshi, "Cooperative SGD" (2018), arXiv 1808.07576.

The algorithm A(tau, W, v): m workers and v auxiliary models make up X. Workers step alone; every
tau-th step X <- X W with a symmetric, doubly stochastic W. The model is the mean of all m + v
columns, and it moves by -eta (sum of the gradients) / (m + v) whatever W is. Such a W keeps the
plain mean and no other, so that client weights c_k go into the steps: worker k steps with eta m
c_k. Special cases:

    FullySynchronousSGD   tau = 1, W averages everything
    PeriodicAveraging     W averages everything: local SGD
    DecentralisedSGD      tau = 1, W is the graph of who talks to whom
    ElasticAveraging      v = 1: an anchor model pulls the workers and is pulled by them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from isfed.base.argument_checks import check_fields, shown
from isfed.base.jit import compiled
from isfed.federation.agents import Agents
from isfed.methods.estimators import weighted_step
from isfed.methods.method_protocol import CountOrZero, Positive
from isfed.methods.shared_fields import Everybody

Mixing = Callable[[int], np.ndarray]  # from the number of workers to W


def check_mixing(matrix: np.ndarray, size: int) -> np.ndarray:
    """A symmetric matrix of that size whose rows sum to one, or an error that says what is not.

    Entries below zero are allowed where W still brings models together: the best pull of elastic
    averaging has one.
    """
    try:
        matrix = np.array(matrix, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"the mixing matrix is {shown(matrix)}; it must be a matrix of numbers"
        ) from None
    if matrix.shape != (size, size):
        raise ValueError(
            f"the mixing matrix has shape {matrix.shape}; agents and auxiliary models are {size}"
        )
    sums = matrix.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if not abs(sums[worst] - 1.0) < 1e-9:
        raise ValueError(
            f"row {worst} of the mixing matrix sums to {sums[worst]:g}; every row and every column "
            "must sum to 1 (doubly stochastic)"
        )
    if not np.abs(matrix - matrix.T).max() < 1e-9:
        i, j = np.unravel_index(np.argmax(np.abs(matrix - matrix.T)), matrix.shape)
        raise ValueError(
            f"the mixing matrix is not symmetric: entry ({i}, {j}) is {matrix[i, j]:g} and "
            f"({j}, {i}) is {matrix[j, i]:g}"
        )
    if matrix.min() < 0.0:
        spread = np.abs(np.linalg.eigvalsh(matrix)).max()
        if spread > 1.0 + 1e-9:
            i, j = np.unravel_index(np.argmin(matrix), matrix.shape)
            raise ValueError(
                f"entry ({i}, {j}) of the mixing matrix is {matrix[i, j]:g}, and an eigenvalue has "
                f"the size {spread:g}: models would be driven apart; use entries >= 0 (doubly "
                "stochastic)"
            )
    return matrix


@dataclass(frozen=True)
class Ring:
    """Everybody averages with its two neighbours on a ring."""

    def __call__(self, num_workers: int) -> np.ndarray:
        identity = np.eye(num_workers)
        return (identity + np.roll(identity, 1, axis=0) + np.roll(identity, -1, axis=0)) / 3.0


@dataclass(frozen=True)
class Elastic:
    """Elastic averaging, which needs one auxiliary model.

    Args:
        pull: alpha; the best, 2 / (K + 2), unless given.

    >>> np.linalg.eigvalsh(Elastic()(4)).round(3)
    array([-0.667,  0.667,  0.667,  0.667,  1.   ])
    """

    pull: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, num_workers: int) -> np.ndarray:
        alpha = 2.0 / (num_workers + 2.0) if self.pull is None else self.pull
        matrix = (1.0 - alpha) * np.eye(num_workers + 1)
        matrix[-1, :-1] = matrix[:-1, -1] = alpha
        matrix[-1, -1] = 1.0 - num_workers * alpha
        return matrix


@dataclass(frozen=True)
class Graph:
    """W itself.

    Args:
        rows: K + v rows of as many numbers, symmetric, every row with sum one.
    """

    rows: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if np.size(row) != len(self.rows):
                raise ValueError(
                    f"row {place} of the mixing matrix has {np.size(row)} numbers, and there are "
                    f"{len(self.rows)} rows; it must be square"
                )

    def __call__(self, num_workers: int) -> np.ndarray:
        return np.array(self.rows)


def links_of(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of a matrix that are not zero, their columns, and where every row begins."""
    rows, columns = np.nonzero(matrix)
    offsets = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return matrix[rows, columns], columns, offsets


def mixed(
    weights: np.ndarray, columns: np.ndarray, offsets: np.ndarray, models: np.ndarray,
    absent: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """W X; whoever is absent talks to nobody: what it would give or get stays where it is."""
    out = np.zeros(models.shape)  # to return it from compiled code would be slow
    _mix(weights, columns, offsets, models, absent, out)
    return out


@compiled
def _mix(weights, columns, offsets, models, absent, out):
    for row in range(models.shape[0]):
        for entry in range(offsets[row], offsets[row + 1]):
            other = columns[entry]
            source = row if absent[row] or absent[other] else other
            for j in range(models.shape[1]):
                out[row, j] += weights[entry] * models[source, j]


@compiled
def _fill_rows(rows, row):
    """rows[:] = row, in an eighth of the time if rows are short."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] = row[j]


class CooperativeState(NamedTuple):
    """All models, and W by its entries that are not zero, row after row."""

    models: np.ndarray  # (K + v, M) those of the workers first, then the auxiliary ones
    weights: np.ndarray  # (entries,)
    columns: np.ndarray  # (entries,)
    offsets: np.ndarray  # (K + v + 1,) where every row begins; empty if W averages everything


def mean_model(models: np.ndarray) -> np.ndarray:
    """(M,) the plain mean of some models."""
    count, size = models.shape
    return weighted_step(np.ones(count), models, count, size)


@dataclass(frozen=True, kw_only=True)
class CooperativeSGD(Everybody):
    """Cooperative SGD A(tau, W, v): tau local steps, then every agent mixes models by a matrix W.

    Args:
        steps: tau, local steps between two mixings.
        mixing: a function from the number of workers to W; None averages everything.
        auxiliary: v, models beside those of the workers.
        client_weights: "uniform", or by "size", where worker k steps with step_size K c_k.
        label: the name in tables and figures.
    """

    mixing: Mixing | None = None
    auxiliary: CountOrZero = 0
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or type(self).__name__

    def start(self, agents: Agents, params: np.ndarray) -> CooperativeState:
        super().start(agents, params)
        size = agents.num_agents + self.auxiliary
        entries = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
        if self.mixing is not None:
            entries = links_of(check_mixing(self.mixing(agents.num_agents), size))
        return CooperativeState(np.repeat(params[None], size, axis=0), *entries)

    def round(self, state: Any, agents: Agents, round_index: int) -> CooperativeState:
        workers = agents.num_agents
        models = state.models.copy()
        step = self.step_size
        if self.client_weights != "uniform":
            step = step * workers * agents.facts(self.client_weights).share()
        models[:workers] += self.changes_of_all(
            agents, models[:workers], round_index, step_size=step
        )
        absent = np.zeros(len(models), bool)
        if agents.clock.drop > 0.0:
            absent[:workers] = ~agents.answers(np.arange(workers), round_index)
        if state.offsets.size:
            models = mixed(state.weights, state.columns, state.offsets, models, absent)
        elif agents.clock.drop == 0.0:
            _fill_rows(models, mean_model(models))
        elif not absent.all():
            models[:] = models[~absent].sum(axis=0) / np.count_nonzero(~absent)
        return state._replace(models=models)

    def model(self, state: Any) -> np.ndarray:
        return mean_model(state.models)


@dataclass(frozen=True, kw_only=True)
class _SpecialCase(CooperativeSGD):
    """What a special case takes of the general one: it has its own W, v and name."""

    mixing: Mixing | None = field(default=None, init=False)
    auxiliary: int = field(default=0, init=False)
    label: str = field(default="", init=False)


@dataclass(frozen=True, kw_only=True)
class FullySynchronousSGD(_SpecialCase):
    """Fully synchronous SGD, A(1, J, 0): all agents average their models after every step."""

    steps: int = field(default=1, init=False)


@dataclass(frozen=True, kw_only=True)
class PeriodicAveraging(_SpecialCase):
    """Periodic averaging, A(tau, J, 0): all agents average after `steps` steps, as in local SGD."""

    steps: int = field()  # to be given


@dataclass(frozen=True, kw_only=True)
class DecentralisedSGD(FullySynchronousSGD):
    """Decentralised SGD, A(1, W, 0): after every step, each agent averages with its neighbours.

    Args:
        mixing: a function from the number of agents to W; a ring unless given.
    """

    mixing: Mixing = Ring()


@dataclass(frozen=True, kw_only=True)
class ElasticAveraging(_SpecialCase):
    """Elastic averaging, A(tau, W, 1): agents and an anchor model pull each other together.

    Args:
        pull: alpha, how hard they pull; 2 / (K + 2) unless given.
    """

    steps: int = 1
    pull: Positive | None = None
    auxiliary: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "mixing", Elastic(self.pull))
