"""What a simulation leaves behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from isfed.base.argument_checks import check_share, matches, shown
from isfed.federation.ledger import Ledger
from isfed.sampling.telemetry import COLUMNS, MOMENT, UNIFORM


def decibels(power: np.ndarray | float) -> np.ndarray | float:
    """10 log10; -inf for zero."""
    with np.errstate(divide="ignore"):
        return 10.0 * np.log10(power)


@dataclass(frozen=True, eq=False)
class Steady:
    """A mean msd over the last rounds, with the standard error over the repetitions."""

    msd: float
    stderr: float
    rounds: int

    @property
    def db(self) -> float:
        """The mean in decibels."""
        return float(decibels(self.msd))

    @property
    def stderr_db(self) -> float:
        """The standard error in decibels, to first order; nan where the msd is not known."""
        return 0.0 if self.msd == 0.0 else float(10.0 / np.log(10.0) * self.stderr / self.msd)


class Measure(Protocol):
    """Something to measure at the models of a run now and then, for instance a test error."""

    every: int  # rounds between measurements; one is made before the first round too
    names: tuple[str, ...]

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """From models (R, M) to one column per name, (R, len(names))."""
        ...


@dataclass(frozen=True)
class Costs:
    """A measure of what a run has cost so far, instead of its models.

    Args:
        num_params: M.
        every: rounds between measurements.

    >>> Costs(num_params=2, every=10).names
    ('bytes_up', 'bytes_down', 'gradients', 'forwards', 'seconds')
    """

    num_params: int
    every: int
    names: ClassVar[tuple[str, ...]] = (
        "bytes_up", "bytes_down", "gradients", "forwards", "seconds",
    )  # fmt: skip

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """Models alone do not tell what they cost."""
        raise TypeError("Costs measures ledgers, not models")

    def of_ledgers(self, ledgers: np.ndarray) -> np.ndarray:
        """From ledgers, (R, entries), to one column per name."""
        rows = []
        for one in map(Ledger.from_array, ledgers):
            up, down = one.bytes_up(self.num_params), one.bytes_down(self.num_params)
            rows.append([up, down, one.gradients, one.forwards, one.seconds])
        return np.array(rows)


class Measured:
    """What was measured: values[rep, point, name] at rounds 0, every, 2 every, ..., the last."""

    def __init__(self, measure: Measure, repetitions: int, rounds: int) -> None:
        if measure.every < 1:
            raise ValueError(f"every={measure.every} must be at least 1")
        self.measure = measure
        begin = getattr(measure, "begin", 0)  # a measure may skip the first rounds
        self.rounds = np.unique(np.append(np.arange(begin, rounds, measure.every), rounds))
        self.values = np.full((repetitions, self.rounds.size, len(measure.names)), np.nan)

    def measure_at(self, run: Any, round_index: int) -> None:
        """Measure a run if this is a round to measure at: its models, or what it has cost."""
        point = int(np.searchsorted(self.rounds, round_index))
        if self.rounds[point] == round_index:
            of_ledgers = getattr(self.measure, "of_ledgers", None)
            of_both = getattr(self.measure, "of_both", None)  # those shown, and those sent
            if of_ledgers is not None:
                self.values[:, point] = of_ledgers(run.ledgers())
            elif of_both is not None:
                self.values[:, point] = of_both(run.params, run.current)
            else:
                self.values[:, point] = self.measure(run.params)

    def fields(self) -> dict[str, Any]:
        """What a history keeps of it."""
        columns = {name: self.values[:, :, i] for i, name in enumerate(self.measure.names)}
        return {"measured_rounds": self.rounds, "measured": columns}


def check_keep(keep: Any, rounds: int) -> np.ndarray:
    """The rounds whose models a run keeps, in increasing order and each once."""
    several = isinstance(keep, Sequence) or (isinstance(keep, np.ndarray) and keep.ndim == 1)
    if isinstance(keep, str | bytes) or not several:
        raise TypeError(f"keep={shown(keep)} must be a sequence of rounds, e.g. keep=[10, 100]")
    for place in keep:
        if not (matches(place, int) and 0 <= place <= rounds):
            raise ValueError(
                f"keep={shown(keep)} has {shown(place)}; expected whole numbers from 0, the start, "
                f"to rounds={rounds}: leave it out, or run more rounds"
            )
    return np.unique(np.array(keep, np.int64))


@dataclass(frozen=True, eq=False)
class History:
    """The msd of every round and repetition, and the state at the end.

    Args:
        msd: (R, rounds) |w_i - w^o|^2 after round i, eq. (56). Here w^o minimises sum_k c_k P_k
            with the c_k of the method: under client_weights="size" that is not `problem.optimum`,
            where all agents count the same, but `problem.by_size.optimum`.
        params: (R, M) the models at the end.
        agent_prob: (R, K) p_k at the end.
        example_prob: (R, rows) p_n at the end, agent by agent like the data; for a large problem
            the kernel keeps the first repetitions only.
        gradients: (R,) example gradients computed.
        uploads: (R,) models sent to the cloud.
        measured_rounds: (points,) the rounds after which something was measured.
        measured: what was measured, by name, each (R, points).
        step_size: the one used, for an algorithm that says "auto".
        telemetry: (R, rounds, columns) what the sampling did; read it with `watched`.
        ledgers: (R, entries) what every repetition cost; read it with `ledger`.
        no_msd: why there is no msd; None if there is one.
        kept_rounds: (kept,) the rounds whose models were kept, in increasing order.
        kept: (R, kept, M) these models; nan for rounds that a run did not reach.
    """

    msd: np.ndarray
    params: np.ndarray
    agent_prob: np.ndarray
    example_prob: np.ndarray
    gradients: np.ndarray
    uploads: np.ndarray
    measured_rounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    step_size: float = math.nan
    telemetry: np.ndarray = field(default_factory=lambda: np.empty((0, 0, len(COLUMNS))))
    ledgers: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    no_msd: str | None = None
    kept_rounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    kept: np.ndarray = field(default_factory=lambda: np.empty((0, 0, 0)))

    def ledger(self, repetition: int = 0) -> Ledger:
        """What one repetition cost."""
        return Ledger.from_array(self.ledgers[repetition])

    @property
    def rounds(self) -> int:
        """How many rounds ran."""
        return self.msd.shape[1]

    @property
    def repetitions(self) -> int:
        """How many repetitions ran."""
        return self.msd.shape[0]

    @property
    def mean(self) -> np.ndarray:
        """The msd of every round, averaged over the repetitions."""
        return self.msd.mean(axis=0)

    @property
    def stderr(self) -> np.ndarray:
        """The standard error of `mean`; nan for a single repetition."""
        return stderr_of_mean(self.msd)

    def watched(self, column: str) -> np.ndarray:
        """One column of the telemetry, (R, rounds); see `isfed.sampling.telemetry.COLUMNS`."""
        if not isinstance(column, str) or column not in COLUMNS:
            raise ValueError(f"column={shown(column)} must be one of {', '.join(COLUMNS)}")
        return self.telemetry[:, :, COLUMNS.index(column)]

    def variance_ratio(self, *, rate: float = 0.01) -> np.ndarray:
        """A running estimate of what uniform sampling would have cost, (R, rounds).

        The second moment of the gradient estimate under uniform sampling over that under the
        probabilities used, both estimated from the draws of the round and averaged with this rate;
        above 1 importance sampling helps. Near w^o, where the gradient is small, that is the ratio
        of the variances.
        """
        check_share(rate, name="rate")
        moments = self.telemetry[:, :, [MOMENT, UNIFORM]].astype(np.float64)
        averages = moving_average(moments, rate)
        over, under = averages[:, :, 1], averages[:, :, 0]
        # No gradient at all: nothing to gain and nothing to lose.
        return np.divide(over, under, out=np.ones_like(over), where=under > 0.0)

    def steady(self, *, share: float = 0.25) -> Steady:
        """The mean msd over the last `share` of the rounds."""
        check_share(share, name="share")
        if self.no_msd is not None:
            raise ValueError(f"this run has no msd: {self.no_msd}; use `measured` instead")
        last = max(1, round(share * self.rounds))
        levels = self.msd[:, -last:].mean(axis=1)
        return Steady(float(levels.mean()), float(stderr_of_mean(levels[:, None])[0]), last)


def moving_average(values: np.ndarray, rate: float) -> np.ndarray:
    """`rate` of each round and the rest of the average before it, over axis 1; from zero.

    A round of which nothing is known leaves the average as it is.
    """
    # A plain loop: scipy.signal takes half a second to import, and this is its only use.
    known = np.isfinite(values)
    averages = rate * np.where(known, values, 0.0)
    for i in range(1, values.shape[1]):
        averages[:, i] += np.where(known[:, i], 1.0 - rate, 1.0) * averages[:, i - 1]
    return averages


def stderr_of_mean(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean over the first axis; nan for a single repetition."""
    if len(values) < 2:
        return np.full(values.shape[1], np.nan)
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))


class DivergenceError(RuntimeError):
    """The run diverged; `history` holds the finite rounds before."""

    def __init__(
        self, round_index: int, history: History, reason: str, *, name: str = "the model"
    ) -> None:
        super().__init__(f"{name} diverged in round {round_index}: {reason}")
        self.round_index = round_index
        self.history = history
