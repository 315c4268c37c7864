"""What importance sampling buys on a problem: FedAvg against ISFedAvg, each at its best step size.

The yardstick is the loss that FedAvg ends with. How many rounds, uploads and gradient evaluations
does each need to get there?
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isfed.base.text_format import plain_number
from isfed.datasets import FederatedTable
from isfed.problems import Problem
from isfed.simulate.run_history import stderr_of_mean
from isfed.studies.steady_state import Settling, settling

FINAL_SHARE = 0.1  # of the records, the last ones, are the final loss


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long and how often to run.

    num_active: L, the number of agents per round.
    rounds: the number of rounds of every repetition.
    repetitions: independent runs, at least 2.
    tuning_repetitions: independent runs with every step size that is tried.
    records: how often the loss is measured in a run.
    seed: the seed of all random draws.
    """

    num_active: int
    rounds: int = 2000
    repetitions: int = 20
    tuning_repetitions: int = 4
    records: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tuning_repetitions", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.repetitions < 2:
            raise ValueError(
                f"repetitions={self.repetitions} must be at least 2 to estimate an error"
            )


def _final(excess: np.ndarray) -> np.ndarray:
    """The mean over the last records, for every repetition."""
    return excess[:, -max(1, round(FINAL_SHARE * excess.shape[1])) :].mean(axis=1)


@dataclass(frozen=True, eq=False)
class Curve:
    """One algorithm at its best step size: the excess loss P(w_i) - P(w^o) along its run."""

    name: str
    step_size: float
    tried: Mapping[float, float]  # final loss of every step size tried; inf where it diverged
    rounds: np.ndarray  # (T,) when the loss was measured
    excess: np.ndarray  # (R, T)
    gradients: float  # a round, on average
    uploads: float

    @property
    def final(self) -> np.ndarray:
        """The final excess loss of every repetition."""
        return _final(self.excess)

    @property
    def settling(self) -> Settling:
        """Whether the excess loss had stopped changing."""
        return settling(self.excess)

    def first_at(self, level: float) -> int | None:
        """The first measured round at which the mean loss is at most `level`."""
        reached = np.flatnonzero(self.excess.mean(axis=0) <= level)
        return int(self.rounds[reached[0]]) if reached.size else None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a comparison of FedAvg with ISFedAvg found, each at its own best step size.

    fedavg, isfedavg: the loss of either along its run, at its best step size.
    optimum_risk: P(w^o), the lowest possible loss.
    model_bytes: the size of one model when it is sent.
    """

    fedavg: Curve
    isfedavg: Curve
    optimum_risk: float
    model_bytes: int = 0

    @property
    def level(self) -> float:
        """FedAvg's final excess loss, which both are to reach."""
        return float(self.fedavg.final.mean())

    @property
    def difference(self) -> tuple[float, float]:
        """FedAvg's final loss less ISFedAvg's, and its standard error over the repetitions."""
        one, other = self.fedavg.final, self.isfedavg.final
        error = np.hypot(*(stderr_of_mean(part[:, None])[0] for part in (one, other)))
        return float(one.mean() - other.mean()), float(error)

    @property
    def gain_db(self) -> tuple[float, float]:
        """How far ISFedAvg's final excess loss is below FedAvg's, in dB, and its standard error."""
        means = [float(curve.final.mean()) for curve in (self.fedavg, self.isfedavg)]
        if min(means) <= 0.0:
            return float("nan"), float("nan")
        errors = [
            float(stderr_of_mean(curve.final[:, None])[0]) / mean
            for curve, mean in zip((self.fedavg, self.isfedavg), means, strict=True)
        ]
        per_share = 10.0 / np.log(10.0)  # dB, to first order
        return 10.0 * float(np.log10(means[0] / means[1])), per_share * math.hypot(*errors)

    @property
    def buys(self) -> bool:
        """Whether ISFedAvg ends lower by more than two standard errors, and gets there sooner."""
        gain, error = self.difference
        mine, theirs = self.isfedavg.first_at(self.level), self.fedavg.first_at(self.level)
        sooner = mine is not None and theirs is not None and mine < theirs
        return gain > 2.0 * error and sooner

    def rows(self) -> list[dict[str, float | str | None]]:
        """For a table: what each needs to reach FedAvg's final loss; None where it does not."""
        rows = []
        for curve in (self.fedavg, self.isfedavg):
            rounds = curve.first_at(self.level)
            rows.append(
                {
                    "name": curve.name,
                    "step_size": curve.step_size,
                    "final_excess": float(curve.final.mean()),
                    "final_stderr": float(stderr_of_mean(curve.final[:, None])[0]),
                    "final_relative": _over(float(curve.final.mean()), abs(self.optimum_risk)),
                    "rounds": rounds,
                    "uploads": None if rounds is None else rounds * curve.uploads,
                    "gradients": None if rounds is None else rounds * curve.gradients,
                }
            )
        return rows

    def relative(self) -> str:
        """The gain in dB and as a share, with its confidence."""
        gain, error = self.gain_db
        if not np.isfinite(gain):
            return ""
        share = 100.0 * (1.0 - 10.0 ** (-gain / 10.0))
        return (
            f" The loss above the optimum is {share:.0f}% lower, or {gain:.1f} dB "
            f"(95% confidence: {gain - 2 * error:.1f} to {gain + 2 * error:.1f} dB)."
        )

    def savings(self) -> str:
        """The uploads and bytes that reaching FedAvg's final loss takes less."""
        before, after = (row["uploads"] for row in self.rows())
        if not (isinstance(before, float) and isinstance(after, float) and self.model_bytes):
            return ""
        saved = before - after
        return f" It saves {saved:,.0f} uploads, {size_words(saved * self.model_bytes)}."

    def verdict(self) -> str:
        """What importance sampling buys, in a sentence or three."""
        said = self._verdict()
        return said + (self.relative() + self.savings() if self.buys else "")

    def _verdict(self) -> str:
        gain, error = self.difference
        about = f"{plain_number(abs(gain), 2)} ± {plain_number(error, 1)}"
        before, after = self.rows()
        if self.buys:
            return (
                f"Importance sampling reaches FedAvg's final loss after {after['rounds']} rounds "
                f"instead of {before['rounds']} ({after['uploads']:.0f} uploads instead of "
                f"{before['uploads']:.0f}, {after['gradients']:.0f} gradients instead of "
                f"{before['gradients']:.0f}), and ends {about} lower."
            )
        if gain > 2.0 * error:
            return (
                f"Importance sampling ends {about} lower than FedAvg, but gets to "
                f"FedAvg's final loss no sooner: after {after['rounds']} rounds, FedAvg after "
                f"{before['rounds']}."
            )
        if gain < -2.0 * error:
            return (
                f"Importance sampling buys nothing here: it ends {about} above FedAvg. Keep FedAvg."
            )
        return (
            "Importance sampling buys nothing here that can be told from chance: the final losses "
            f"differ by {about} after {self.fedavg.rounds[-1]} rounds. Keep "
            "FedAvg, or look again with more --rounds."
        )


def size_words(count: float) -> str:
    """A number of bytes in words.

    >>> size_words(1234567)
    '1.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000.0 or unit == "GB":
            break
        count /= 1000.0
    return f"{count:.3g} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"


def _over(value: float, scale: float) -> float | None:
    return value / scale if scale > 0.0 else None


def problem_of(table: FederatedTable, *, ridge: float = 1e-3, batch_size: int = 8) -> Problem:
    """The problem of a table: the loss that fits its target, batches no larger than an agent."""
    sizes = np.minimum(batch_size, table.data.num_examples)
    return Problem(data=table.data, loss=table.loss(ridge=ridge), batch_size=sizes, name="table")
