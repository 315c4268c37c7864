"""One adaptive gain for all agents, or one for each: what a correction leaves of the error.

    python docs/make/own_gains.py [--seeds 5]

The library's gain is common to all agents. Here every agent also has the ratio of its own pairs of
turns (forgetting a tenth for each), and its gain is the mean of its own ratio, counted as often as
it has pairs, and of the common one, counted SHRINK times; with SHRINK = 0 each agent is alone.
Prints msd in dB (presets) or excess risk in thousandths, means and standard errors over the seeds,
all with the same draws of the study: "drift, importance" at the step size of its tuning.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np
from variance_page import Cell, as_text, tasks

from isfed import simulate
from isfed.federation.variate_updates import (
    AGREEMENT,
    FORGET,
    LENGTH,
    PAIRS,
    learn,
    pooled_gain,
    step_and_move,
)
from isfed.methods import control_variates
from isfed.simulate.simulate_call import Engine
from isfed.studies.study_engine import ending
from isfed.studies.work_cells import Finished, problem_of

OWN_FORGET = 0.1
SHRINKS = (0.0, 3.0, 30.0)
METHOD = "drift, importance"
CELLS = {
    "regression, L=6": 0.01, "outliers, L=6": 0.01, "ijcnn1, one class, E=1, L=10": 2.0,
    "synthetic(1,1), E=1, L=10": 0.3,
}  # fmt: skip


class OwnGains:
    """The cloud's part of a round, `absorb`, with a gain for every agent."""

    def __init__(self, shrink: float) -> None:
        self.shrink = shrink
        self.book = None

    def _begin(self, reference) -> None:
        self.book, count = reference.book, len(reference.book)
        self.sums = np.zeros((count, 3))  # as the common ones: AGREEMENT, LENGTH, PAIRS
        self.last = {}  # agent -> (v of its last turn, with which gain c_k moved)

    def _gain(self, agent: int, news: np.ndarray, weight: float, pool: np.ndarray) -> float:
        if agent in self.last:
            before, gain = self.last[agent]
            square = float(before @ before)
            pair = np.array([float(news @ before) + gain * square, square, 1.0])
            self.sums[agent] = (1.0 - OWN_FORGET) * self.sums[agent] + pair
            pair[:2] *= weight * weight
            pool[: PAIRS + 1] = (1.0 - FORGET) * pool[: PAIRS + 1] + pair
        own, common = self.sums[agent], pooled_gain(pool)
        if own[LENGTH] > 0.0:
            ratio = own[AGREEMENT] / own[LENGTH]
            common = (own[PAIRS] * ratio + self.shrink * common) / (own[PAIRS] + self.shrink)
        found = min(max(common, 0.0), 1.0)
        self.last[agent] = (news.copy(), found)
        return found

    def absorb(
        self, rule, reference, step_size, num_active, heard, params, agents, weight, news, reports
    ) -> None:
        """As `isfed.federation.variate_updates.absorb`."""
        if self.book is None or not reference.book.any():
            self._begin(reference)
        scores, share = reports
        total, move = weight @ news, np.zeros(params.size)
        for i, agent in enumerate(agents.tolist()):
            gain = self._gain(agent, news[i], float(weight[i]), reference.pool)
            fixed = rule._replace(gain=gain)
            scores[i] = learn(
                fixed, reference, agent, news[i], weight[i], scores[i], share[i], move
            )
        step_and_move(rule, reference, step_size, num_active, heard, params, total, move)


def errors(cell: Cell, step: float, seeds: range, engine: Engine = "auto") -> list[float]:
    """The level of every seed, as in the study."""
    task = tasks()[cell]
    algorithm = replace(task.algorithms[METHOD], step_size=step)
    problem, measure = problem_of(task.source)
    runs = [
        simulate(problem, algorithm, rounds=task.rounds, seed=seed, measure=measure, engine=engine)
        for seed in seeds
    ]
    return [float(ending(Finished(run, None, 0.0), task.share).mean()) for run in runs]


def shown(cell: Cell, found: list[float]) -> str:
    """Mean and standard error, in the unit of the study's tables."""
    mean, error = float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(len(found))
    text = as_text(cell.preset, mean, error)
    return text + (" dB" if cell.preset else "")


def main() -> None:
    """Every problem with a common gain and with own ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    plain = control_variates.absorb
    for cell in tasks():
        if (step := CELLS.get(cell.title)) is None:
            continue
        found = {"common": shown(cell, errors(cell, step, seeds))}
        for shrink in SHRINKS:
            alone: list[float] = []
            for seed in seeds:
                control_variates.absorb = OwnGains(shrink).absorb
                alone += errors(cell, step, range(seed, seed + 1), "agents")
            control_variates.absorb = plain
            found[f"own, shrunk by {shrink:g}"] = shown(cell, alone)
        print(f"{cell.title}: {found}", flush=True)


if __name__ == "__main__":
    main()
