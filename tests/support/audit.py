"""Audits of privacy: a lower bound on epsilon from how well two worlds can be told apart.

In one world an agent sends a change of the largest length whenever it is drawn, in the other it
sends nothing. `python tests/support/audit.py` prints what 10^5 runs in each world show.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta

from isfed import HorvitzThompson
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.privacy_loss import NUM_LEVELS, epsilons, equal_noise, level_of
from isfed.federation.safety import Privacy
from isfed.methods.federated import Opened
from isfed.methods.private import Private

DELTA = 1e-5
UNIFORM = 0.1  # L / K


def stated(inclusion: float, noise: float, *, rounds: int, delta: float = DELTA) -> float:
    """Epsilon by the privacy loss distribution."""
    level = int(level_of(np.array([inclusion]), inclusion)[0])
    spent = np.zeros((1, NUM_LEVELS), np.int64)
    spent[0, level] = rounds
    return float(epsilons(spent, {level: noise}, uniform=inclusion, delta=delta)[0])


def lower_bound(here: np.ndarray, away: np.ndarray, *, delta: float = DELTA) -> float:
    """What epsilon is at least, with 99%; the threshold is found on the first half of the runs."""
    half = len(here) // 2
    tune, test = slice(0, half), slice(half, None)

    def bound(part: slice, threshold: float) -> float:
        runs = len(here[part])
        hits, false = (here[part] > threshold).sum(), (away[part] > threshold).sum()
        low = beta.ppf(0.005, hits, runs - hits + 1) if hits else 0.0
        high = beta.ppf(0.995, false + 1, runs - false)
        return math.log(max(low - delta, 1e-300) / high)

    shares = [0.5, 0.9, 0.99, 0.999, 0.9995]
    return bound(test, max(np.quantile(away[tune], shares), key=lambda t: bound(tune, t)))


def audit(inclusion: float, noise: float, *, rounds: int, runs: int) -> float:
    """Of the mechanism, by the likelihood ratio of all rounds."""
    rng = np.random.default_rng(0)

    def ratio(present: bool) -> np.ndarray:
        total = np.zeros(runs)
        for _ in range(rounds):
            sent = present * (rng.random(runs) < inclusion)
            seen = sent + noise * rng.standard_normal(runs)
            total += np.log1p(inclusion * np.expm1((2.0 * seen - 1.0) / (2.0 * noise**2)))
        return total

    return lower_bound(ratio(True), ratio(False))


class SameClip(Private):
    """As it once was: what is clipped has its weight, and the clip is the same for all."""

    def limits(self, cohort, facts):
        return np.full(cohort.agents.size, self.privacy.clip)


def audit_code(
    inclusion: float, noise: float, *, rounds: int, runs: int, kind: type = Private
) -> float:
    """Of the estimator itself; agent 0 is drawn with that probability, and the others seldom."""
    count = 10  # of agents, of which one is drawn in the mean
    estimator = kind(HorvitzThompson(), Privacy(clip=1.0, noise=noise, rounds=rounds, delta=DELTA))
    facts = Facts(count, 1, 1, None, None, None, None)
    chances = np.full(count, (1.0 - inclusion) / (count - 1))
    chances[0] = inclusion
    cohort = Cohort(np.array([0]), 1, np.ones(1), chances[:1], chances=chances)
    nobody = cohort._replace(agents=np.empty(0, np.int64), times=np.ones(0), prob=np.ones(0))
    opened = [Opened(c, np.zeros(1), Work(0.1), None) for c in (nobody, cohort)]
    updates = [
        Updates(np.arange(n), np.full((n, 1), 1e6), np.ones(n), np.zeros((n, 4)), np.zeros((n, 0)))
        for n in (0, 1)
    ]
    rng, state = np.random.default_rng(1), estimator.init(facts, np.zeros(1))
    most = float(estimator.limits(cohort, facts)[0])  # what the agent can add to a step

    def ratio(present: bool) -> np.ndarray:
        drawn = (present * (rng.random(runs * rounds) < inclusion)).astype(int)
        each = (estimator.combine(state, opened[d], updates[d], facts)[0][0] for d in drawn)
        step = np.fromiter(each, float, runs * rounds).reshape(runs, rounds)
        lost = (2.0 * most * step - most**2) / (2.0 * noise**2)
        return np.log1p(inclusion * np.expm1(lost)).sum(axis=1)

    return lower_bound(ratio(True), ratio(False))


def main() -> None:
    runs, rounds = 100_000, 30
    own = equal_noise(0.5, uniform=UNIFORM, noise=1.0, rounds=rounds, delta=DELTA)
    at_uniform = stated(0.1, 1.0, rounds=rounds)
    print(f"{rounds} rounds, {runs} runs in each world: at least, and stated")
    for name, inclusion, noise, wanted in (
        ("drawn as L / K = 0.1", 0.1, 1.0, at_uniform),
        ("drawn with 0.5, clipped for it", 0.5, own, stated(0.5, own, rounds=rounds)),
        ("drawn with 0.5, the same clip", 0.5, 1.0, at_uniform),
    ):
        found = audit(inclusion, noise, rounds=rounds, runs=runs)
        print(f"  {name:32} {found:6.2f}  {wanted:6.2f}{'  LEAK' if found > wanted else ''}")
    runs, rounds = 10_000, 10
    wanted = stated(0.1, 1.0, rounds=rounds)
    print(f"the estimator itself, {rounds} rounds, {runs} runs in each world")
    for name, inclusion, kind in (
        ("drawn as L / K = 0.1", 0.1, Private),
        ("drawn with 0.9, clipped for it", 0.9, Private),
        ("drawn with 0.9, the same clip", 0.9, SameClip),
    ):
        found = audit_code(inclusion, 1.0, rounds=rounds, runs=runs, kind=kind)
        print(f"  {name:32} {found:6.2f}  {wanted:6.2f}{'  LEAK' if found > wanted else ''}")


if __name__ == "__main__":
    main()
