"""The kernel against what one writes first: FedAvg as a loop over agents and steps in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import problems
from c_reference import kernel_run
from measure import Report, by_turns

from isfed import Logistic, Problem


class NumpyRun:
    """FedAvg on a generalised linear loss, one repetition from params zero."""

    def __init__(self, problem: Problem, *, step_size: float, num_active: int) -> None:
        self.problem = problem
        self.step_size = step_size
        self.num_active = num_active
        self.params = np.zeros(problem.num_params)
        self.rng = np.random.default_rng(0)
        self.logistic = isinstance(problem.loss, Logistic)

    def gradient(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The mean gradient of a batch."""
        margin = x @ params
        slope = -y / (1.0 + np.exp(y * margin)) if self.logistic else -2.0 * (y - margin)
        return x.T @ slope / len(y) + 2.0 * self.problem.loss.ridge * params

    def turn(self, agent: int) -> np.ndarray:
        """The model after the agent's local steps."""
        features, targets = self.problem.data.agent(agent)
        local = self.params.copy()
        for _ in range(self.problem.local_steps[agent]):
            batch = self.rng.integers(len(targets), size=self.problem.batch_size[agent])
            local -= self.step_size * self.gradient(local, features[batch], targets[batch])
        return local

    def advance(self, rounds: int) -> np.ndarray:
        """Run some rounds; returns their msd."""
        msd = np.empty(rounds)
        for i in range(rounds):
            active = self.rng.choice(self.problem.num_agents, self.num_active, replace=False)
            self.params = np.mean([self.turn(agent) for agent in active], axis=0)
            msd[i] = np.sum((self.params - self.problem.optimum) ** 2)
        return msd


def run(report: Report, _folder: Path) -> None:
    """FedAvg on W1 and W2."""
    for problem in (problems.regression(), problems.ragged()):
        algorithm = problems.fedavg(problem)
        plain = NumpyRun(
            problem, step_size=float(algorithm.step_size), num_active=algorithm.num_active
        )
        kernel = kernel_run(problem, algorithm)
        times = by_turns({"NumPy": plain.advance, "kernel": kernel.advance}, report)
        name = f"{problem.name} FedAvg: NumPy loop"
        report.compare("NumPy", name, times["NumPy"], "kernel", times["kernel"])
