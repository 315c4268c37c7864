"""Methods at one common step size, and each again at its own best one, found on rows held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from isfed.algorithms import ISFedAvg
from isfed.experiments.config import Experiment
from isfed.experiments.runner import Progress
from isfed.experiments.steps import StepChoice, choose_step_size
from isfed.experiments.store import StoreError
from isfed.problems import Problem
from isfed.simulate import Measure
from isfed.store import write_whole


class HoldingSource(Protocol):
    """A source of a problem that can hold rows out."""

    @property
    def held_out(self) -> bool:
        """Whether rows are held out."""
        ...

    def make(self) -> Problem:
        """The problem, without the rows held out if `held_out`."""
        ...

    def measure(self, problem: Problem) -> Measure:
        """What to measure along the way."""
        ...

    def held_out_loss(self, problem: Problem) -> Measure:
        """The loss on the rows held out."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the configuration says of the problem."""
        ...


@dataclass(frozen=True)
class Tuned:
    """Methods at one common step size, and each again at its own best one from a grid."""

    name: str
    source: HoldingSource
    methods: dict[str, ISFedAvg]  # at the common step size
    grid: Sequence[float]
    rounds: int = 3000
    repetitions: int = 20
    seed: int = 0
    grid_rounds: int = 1500
    grid_repetitions: int = 4
    at_common: bool = True  # whether to run at the common step size too

    def choose_steps(
        self, path: Path, *, threads: int | None, progress: Progress | None
    ) -> dict[str, StepChoice]:
        """The best step of every method; each is kept in the file as soon as it is known."""
        mark = repr((self.source, self.grid, self.grid_rounds, self.grid_repetitions, self.seed))
        found: dict[str, Any] = {"made_with": mark, "losses": {}}
        if path.exists():
            try:
                read = json.loads(path.read_text())
            except ValueError as error:
                raise StoreError(f"{path} is damaged ({error}); delete it to choose again") from (
                    error
                )
            found = read if read.get("made_with") == mark else found
        source = replace(self.source, held_out=True)  # type: ignore[type-var]
        problem = source.make()
        measure = source.held_out_loss(problem)
        choices = {}
        for name, method in self.methods.items():
            if progress is not None:
                progress.begin(f"step sizes, {name}", len(self.grid), 0)
            known = found["losses"].get(name)
            if known is None:
                choice = choose_step_size(
                    problem, method, measure, self.grid,
                    rounds=self.grid_rounds, repetitions=self.grid_repetitions, seed=self.seed,
                    threads=threads, progress=None if progress is None else progress.advance,
                )  # fmt: skip
                found["losses"][name] = [[k, v] for k, v in choice.losses.items()]
                write_whole(path, (json.dumps(found, indent=2) + "\n").encode())
                known = found["losses"][name]
            losses = {float(k): float(v) for k, v in known}
            choices[name] = StepChoice(min(losses, key=lambda k: losses[k]), losses)
        return choices

    def experiment(self, choices: dict[str, StepChoice]) -> Experiment:
        """All methods at the common step size, then all at their best."""
        algorithms = dict(self.methods) if self.at_common else {}
        for name, method in self.methods.items():
            best = choices[name].best
            algorithms[f"{name}, best step {best:g}"] = replace(method, step_size=best)
        resolved = {
            "name": self.name,
            "rounds": self.rounds,
            "repetitions": self.repetitions,
            "seed": self.seed,
            "problem": self.source.describe(),
            "algorithm": [{"name": n, "record": repr(a)} for n, a in algorithms.items()],
        }
        return Experiment(
            self.name, self.source, algorithms, self.rounds, self.repetitions, self.seed, resolved
        )
