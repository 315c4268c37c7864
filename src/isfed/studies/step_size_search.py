"""The one search for a step size: over a grid, which may grow while the best is at its edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isfed.studies.executors import Crew
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_reader import StepSearch
from isfed.studies.work_cells import cells_of

FACTOR = 2.0  # between a step size beyond the edge and the edge


class NoStepError(RuntimeError):
    """An algorithm diverged at every step size that was tried."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How step sizes are tried.

    source: of the problem; the first thing it measures is the loss that decides.
    grid: step sizes, in rising order.
    share: of the measurements, the last ones, whose mean is the loss.
    widen: how often the grid may grow by one step size at each end.
    """

    source: ProblemSource
    grid: Sequence[float]
    rounds: int
    repetitions: int
    seed: int
    share: float
    widen: int = 0


def search_step_size(crew: Crew, name: str, algorithm: Any, search: Search) -> StepSearch:
    """Run every step size of the grid and keep the one of least loss at the end."""
    losses = _try(crew, name, algorithm, search, search.grid)
    for grow, edge in ((1.0 / FACTOR, min(losses)), (FACTOR, max(losses))):
        for _ in range(search.widen):
            if StepSearch.of(losses).best != edge:
                break
            edge *= grow
            losses |= _try(crew, name, algorithm, search, [edge])
    found = StepSearch.of(losses)
    if not math.isfinite(losses[found.best]):
        raise NoStepError(
            f"{name} diverged at every step size from {min(losses):.2g} to {max(losses):.2g}; are "
            "the features standardised?"
        )
    return found


def _try(
    crew: Crew, name: str, algorithm: Any, search: Search, steps: Sequence[float]
) -> dict[float, float]:
    """The loss at every step size; inf where it diverged."""
    block = crew.block(search.repetitions, len(steps))
    groups = {
        f"{name}, step {step!r}": cells_of(
            name, f"steps {name} {step!r}", search.repetitions, crew.shelf, block,
            source=search.source, algorithm=replace(algorithm, step_size=step),
            rounds=search.rounds, seed=search.seed, details=False,
        )
        for step in steps
    }  # fmt: skip
    found = crew.run(groups, f"{name}, step sizes", warn=False)
    losses = {}
    for step, result in zip(steps, found.values(), strict=True):
        values = next(iter(result.history.measured.values()))
        last = max(1, round(search.share * values.shape[1]))
        losses[step] = math.inf if result.diverged else float(values[:, -last:].mean())
    return losses
