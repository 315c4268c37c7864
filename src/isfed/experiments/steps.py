"""Every method at its own best step size, chosen on rows that are neither trained nor tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.problems import Problem
from isfed.simulate import DivergenceError, Measure, simulate

LAST_SHARE = 0.25  # of the measurements, whose mean decides


class NoStepError(RuntimeError):
    """An algorithm diverged at every step size that was tried."""


@dataclass(frozen=True)
class StepChoice:
    """The best step size of a grid, and the held-out loss at every one (inf: it diverged)."""

    best: float
    losses: dict[float, float]

    @classmethod
    def of(cls, losses: dict[float, float]) -> StepChoice:
        """The choice that the losses suggest."""
        return cls(min(losses, key=lambda step: losses[step]), losses)

    @property
    def pairs(self) -> list[list[float | None]]:
        """(step size, loss), for a JSON file, which has no word for infinity."""
        return [[s, loss if np.isfinite(loss) else None] for s, loss in self.losses.items()]

    @property
    def at_edge(self) -> bool:
        """Whether the best is the first or the last of the grid: then the grid is too narrow."""
        finite = [step for step, loss in self.losses.items() if np.isfinite(loss)]
        return self.best in (min(finite), max(self.losses))


def choose_step_size(
    problem: Problem,
    algorithm: ISFedAvg,
    measure: Measure,
    grid: Sequence[float],
    *,
    rounds: int,
    repetitions: int,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> StepChoice:
    """Run every step size of the grid and keep the one of least held-out loss at the end."""
    losses: dict[float, float] = {}
    for step_size in grid:
        try:
            history = simulate(
                problem,
                replace(algorithm, step_size=step_size),
                rounds=rounds,
                repetitions=repetitions,
                seed=seed,
                threads=threads,
                measure=measure,
            )
        except DivergenceError:
            losses[step_size] = np.inf
        else:
            values = history.measured[measure.names[0]]
            last = max(1, round(LAST_SHARE * values.shape[1]))
            losses[step_size] = float(values[:, -last:].mean())
        if progress is not None:
            progress(rounds)
    choice = StepChoice.of(losses)
    if not np.isfinite(losses[choice.best]):
        raise NoStepError(f"{algorithm.name} diverged at every step size of {list(grid)}")
    return choice
