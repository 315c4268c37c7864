"""What a diagnosis found: the four ways to sample, and what follows from them, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from isfed.theory.probabilities import Choices

if TYPE_CHECKING:
    from isfed.theory.strategies import Ways

LEAST_GAIN = 0.5  # dB; what is below is not worth a change
ALIKE = 0.01  # of the noise of uniform sampling: agents that cause less are alike


@dataclass(frozen=True)
class Option:
    """One way to sample, and what it would do."""

    sampling: str  # uniform, agents, examples, both: where importance sampling is used
    variance: float  # of the gradient estimate
    agents_share: float  # of the variance
    variance_ratio: float  # that of uniform sampling over this
    gain_db: float  # of the error that remains at a small step size
    step_limit: float | None  # the largest stable step size; None where it is not known
    careful_limit: float | None  # the same with every example at its largest curvature anywhere
    settled_after: float | None  # rounds, at a quarter of the step limit; None where not known
    agents_size: float  # effective number of agents in a draw of L
    examples_size: float  # effective number of examples in a step, on average over the agents


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What importance sampling would do for a problem, at one model.

    problem: its name.
    setting: the sizes and choices that the numbers are for.
    at: at which model.
    weighted: whether the gain weighs directions by their curvature, as the msd does.
    options: the four ways to sample, by name: uniform, agents, examples, both.
    choices: the inclusion probabilities of importance sampling on both sides.
    top_agents: (agent, K p_k) of the agents that would be drawn most.
    top_examples: (agent, example, N_k p_n) of the examples that would be drawn most.
    constants: the constants of the theory, or why there are none; empty unless asked for.
    slow: for every option, the features that it waits for until it has settled, with their shares.
    remarks: what is special about the problem.
    degenerate: why there is nothing to gain, whatever the numbers say; empty if there may be.
    ways: to sample agents: spreads and corrections as well.
    """

    problem: str
    setting: dict[str, Any]
    at: str
    weighted: bool
    options: dict[str, Option]
    choices: Choices = field(repr=False)
    top_agents: list[tuple[int, float]] = field(default_factory=list)
    top_examples: list[tuple[int, int, float]] = field(default_factory=list)
    constants: dict[str, float | str] = field(default_factory=dict)
    slow: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    degenerate: str = ""
    ways: Ways | None = None

    @property
    def settling_rounds(self) -> float | None:
        """How many rounds the best option takes to settle, at a quarter of its stable step."""
        return self.best.settled_after

    @property
    def best(self) -> Option:
        """The simplest option that is within `LEAST_GAIN` of the best one."""
        most = max(option.gain_db for option in self.options.values())
        return next(o for o in self.options.values() if o.gain_db >= most - LEAST_GAIN)

    @property
    def helps(self) -> bool:
        """Whether any importance sampling is worth it."""
        return self.best.sampling != "uniform" and not self.degenerate

    def recommendation(self) -> str:
        """What to do, in one sentence."""
        uniform, best = self.options["uniform"], self.best
        if self.degenerate:
            return f"It would not help you: {self.degenerate}"
        if not self.helps:
            most = max(option.gain_db for option in self.options.values())
            return (
                "It would not help you: importance sampling would reduce the remaining error by "
                f"{most:.1f} dB at most, so keep sampling uniformly."
            )
        if math.isinf(best.gain_db):
            return f"Sample {best.sampling} by importance: at this model no noise would be left."
        what = {"agents": "agents", "examples": "examples", "both": "agents and examples"}
        sentence = (
            f"Sample {what[best.sampling]} by importance: at the same small step size the "
            f"remaining error falls by {best.gain_db:.1f} dB (to 1/{10 ** (best.gain_db / 10):.3g})"
        )
        if uniform.step_limit and best.step_limit and best.step_limit < 0.5 * uniform.step_limit:
            ratio = uniform.step_limit / best.step_limit
            sentence += f", but the largest stable step size is {ratio:.2g} times smaller"
        return sentence + "."

    def as_dict(self) -> dict[str, Any]:
        """All of it but the probabilities, for JSON."""
        return {
            "problem": self.problem,
            "setting": self.setting,
            "at": self.at,
            "weighted_by_curvature": self.weighted,
            "recommendation": self.recommendation(),
            "best": self.best.sampling if self.helps else "uniform",
            "degenerate": self.degenerate,
            "remarks": self.remarks,
            "settling_rounds": self.settling_rounds,
            "waits_for": [
                {"feature": j, "share": share} for j, share in self.slow.get(self.best.sampling, [])
            ],
            "options": [
                {name: _json(value) for name, value in vars(option).items()}
                for option in self.options.values()
            ],
            "top_agents": [{"agent": k, "times_uniform": f} for k, f in self.top_agents],
            "top_examples": [
                {"agent": k, "example": n, "times_uniform": f} for k, n, f in self.top_examples
            ],
            "constants": self.constants,
            "ways": None if self.ways is None else self.ways.as_dict(),
        }


def nothing_to_learn(targets: np.ndarray) -> str:
    """Why there is nothing to gain from targets that are all alike; empty if they differ."""
    if targets.min() < targets.max():
        return ""
    return f"the target is always {targets[0]:g}, so there is nothing to learn."


def _json(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
