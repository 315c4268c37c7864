"""A certificate of unbiasedness: does a round estimate the gradient at the model it starts from?

The library's own agents and cloud make the round; only their gradients are held at that model
(eq. 14) and, where all outcomes can be listed, their draws are prescribed. So a wrong weight, a
wrong mean or a design that misses its inclusion probabilities shows. Where outcomes are listed, the
library's own designs are taken at their word (`isfed.sampling.designs.outcomes`); any other design
is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from isfed.algorithms import ISFedAvg, corrected, hearing
from isfed.algorithms.corrected import CorrectedState
from isfed.algorithms.in_process import Federation
from isfed.base.arguments import checked
from isfed.base.checks import check_active, check_seed, check_whole
from isfed.federation.agent import Agent, Upload
from isfed.federation.agents import PLAIN_LOCAL, Local, Turns, Uploads
from isfed.federation.correction import Reference
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.designs import Design
from isfed.sampling.designs.outcomes import TooManyError, outcomes
from isfed.sampling.policies import Policy, Refresh, ScorePolicy
from isfed.theory.choices import check_model, check_uniform
from isfed.theory.stability import explain_divergence, with_step_size

EXACT = 1e-9  # deviation, relative to the gradients, that rounding may leave in an exact sum


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the expected estimate of a round is from the gradient.

    exact: whether all outcomes were listed; otherwise rounds were sampled.
    samples: how many outcomes were listed, or rounds sampled.
    gradient: (M,) the true gradient.
    deviation: (M,) the mean of the estimate minus the gradient.
    stderr: (M,) the standard error of the deviation; zero if exact.
    scale: the root mean square length of the agents' gradients.
    confidence: the confidence of the verdict; 1 if it is exact.
    """

    exact: bool
    samples: int
    gradient: np.ndarray
    deviation: np.ndarray
    stderr: np.ndarray
    scale: float
    confidence: float

    @property
    def largest(self) -> float:
        """The largest deviation of a component: in standard errors, or relative if exact."""
        size = np.abs(self.deviation)
        if self.exact:
            return float(size.max() / self.scale) if self.scale > 0.0 else float(size.max())
        moves = self.stderr > 0.0
        still = size[~moves] > EXACT * max(self.scale, 1e-300)  # off, and always by the same
        if still.any():
            return float("inf")
        return float((size[moves] / self.stderr[moves]).max()) if moves.any() else 0.0

    @property
    def threshold(self) -> float:
        """What `largest` may be: by Bonferroni and Student's t, if sampled."""
        if self.exact:
            return EXACT
        level = (1.0 - self.confidence) / (2.0 * self.deviation.size)
        return -float(stdtrit(self.samples - 1, level))  # scipy.stats takes a second to import

    @property
    def unbiased(self) -> bool:
        """The verdict."""
        return self.largest <= self.threshold

    def __str__(self) -> str:
        how = (
            f"all {self.samples} outcomes listed: largest deviation {self.largest:.1e} of the "
            f"gradients' length (rounding: {EXACT:.0e})"
            if self.exact
            else f"{self.samples} rounds sampled: largest deviation {self.largest:.2f} standard "
            f"errors (at most {self.threshold:.2f} at confidence {self.confidence:g})"
        )
        passed = "unbiased" if self.exact else "no bias found"  # a small one may need more samples
        return f"{passed if self.unbiased else 'BIASED'}; {how}"


class _Held:
    """A loss whose gradients are always those at one model."""

    def __init__(self, loss: Any, params: np.ndarray) -> None:
        self.loss, self.params = loss, params

    def gradient(self, params, x, y, weight):
        return self.loss.gradient(self.params, x, y, weight)


class _Prescribed:
    """A design that draws what it is told; the inclusion probabilities are the table's own."""

    fixed_size = True

    def __init__(self, design: Design) -> None:
        self.units = np.empty(0, np.int64)
        self.repeats = getattr(design, "repeats", False)

    def draw(self, inclusion, rng):
        return self.units


def _frozen(policy: Policy) -> Policy:
    """The policy with a table that learns nothing."""
    return ScorePolicy(policy.name, policy.initial, Refresh.NEVER, policy.floor)


@checked
def certify(
    problem: Problem,
    algorithm: ISFedAvg,
    *,
    params: np.ndarray | None = None,
    rounds: int = 20,
    samples: int = 2000,
    confidence: float = 0.999,
    seed: int = 0,
    federation: Callable[..., Federation] = Federation,
) -> Certificate:
    """Check whether a round of the algorithm estimates the gradient of the risk without bias.

    After some ordinary rounds, in which the policies learn, the expected estimate of the next round
    is found at the model reached: by listing all outcomes if there are few, otherwise by sampling.

    problem: what is learned.
    algorithm: whose rounds are checked.
    params: (M,) where the ordinary rounds begin; zero unless given.
    rounds: how many ordinary rounds.
    samples: how many rounds to sample if the outcomes cannot be listed.
    confidence: the probability that an unbiased algorithm passes, if sampled.
    seed: the seed of all random draws.
    federation: makes the cloud and the agents; give your own to put them to the test.

    >>> from isfed import PAPER
    >>> small = PAPER.replace(num_agents=5, num_examples=4, batch_size=(1, 2)).make()
    >>> certify(small, ISFedAvg(step_size="auto", num_active=2)).unbiased
    True
    """
    check_active(algorithm.num_active, problem.num_agents)
    check_uniform(algorithm)
    check_whole(rounds, name="rounds", least=0)
    check_seed(seed)
    if samples < 2 or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"samples={samples} must be at least 2 and confidence={confidence} between 0 and 1"
        )
    start = np.zeros(problem.num_params) if params is None else check_model(problem, params)
    problem = problem.batched_for(algorithm)
    algorithm = with_step_size(problem, algorithm, initial=start)
    made = federation(problem, algorithm, seed=seed, repetition=0, initial=start)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(rounds):
            made.step(i)
    if not np.isfinite(made.cloud.params).all():
        raise ValueError(
            f"the {rounds} rounds before diverged: {explain_divergence(problem, algorithm)}"
        )
    round_type = _CorrectedRound if algorithm.corrected else _Round
    return round_type(made).certificate(samples, rounds, confidence)


class _Round:
    """The round that comes next, with every gradient held at the model it starts from."""

    def __init__(self, made: Federation) -> None:
        self.made = made
        self.params = made.cloud.params.copy()
        hearing.prepare(made.algorithm, made.state.hearing, made.cloud)
        if made.algorithm.agents.refresh == Refresh.ALL:
            made.score_all(self.params)
        gradients = []
        for agent in made.agents:
            norms, gradient = agent.norms_at(self.params)
            gradients.append(gradient)
            if made.algorithm.examples.refresh == Refresh.ALL:
                agent.table.replace(norms)
            agent.loss = _Held(agent.loss, self.params)
            # A step of 1: what an agent sends is its estimate itself, with the sign turned.
            agent.rules = replace(agent.rules, step_size=1.0)
        self.means = np.array(gradients)
        self.tables = [agent.table.nodes.copy() for agent in made.agents]
        self.memories = [agent.memory.copy() for agent in made.agents]

    def certificate(self, samples: int, first_round: int, confidence: float) -> Certificate:
        """List all outcomes if possible, else sample."""
        gradient = self.means.mean(axis=0)
        scale = float(np.sqrt(np.mean(np.sum(self.means**2, axis=1))))
        try:
            mean, count = self.listed()
            return Certificate(
                True, count, gradient, mean - gradient, np.zeros(gradient.size), scale, 1.0
            )
        except TooManyError:
            pass
        found = np.array([self.sampled(first_round + i) for i in range(samples)])
        stderr = found.std(axis=0, ddof=1) / np.sqrt(samples)
        return Certificate(
            False, samples, gradient, found.mean(axis=0) - gradient, stderr, scale, confidence
        )

    def _restore(self, agent: int) -> Agent:
        """The agent as it was before its turn."""
        self.made.agents[agent].table.nodes[:] = self.tables[agent]
        self.made.agents[agent].memory[:] = self.memories[agent]
        return self.made.agents[agent]

    def sampled(self, round_index: int) -> np.ndarray:
        """The estimate of one round drawn at random."""
        cloud = self.made.cloud
        selection = cloud.select(round_index)
        uploads = [
            self._restore(k).work(self.params, prob, round_index)
            for k, prob in zip(selection.active, selection.agent_prob, strict=True)
        ]
        return self._aggregated(selection, uploads)

    def _aggregated(self, selection: Any, uploads: list[Upload]) -> np.ndarray:
        """What the cloud makes of the uploads, as an estimate of the gradient."""
        cloud = self.made.cloud
        cloud.params = self.params.copy()
        cloud.aggregate(selection, uploads)
        moved, cloud.params = cloud.params, self.params.copy()
        return self.params - moved

    def listed(self) -> tuple[np.ndarray, int]:
        """The expected estimate, and how many outcomes it took.

        Given the agents, the estimate is linear in what they send, so their means will do. A step's
        probabilities are fixed before its draw, so every step is as the first: one batch may serve
        for all of them, with a table that learns nothing in between.
        """
        cloud = self.made.cloud
        sets = outcomes(cloud.table.design, cloud.table.inclusion(cloud.num_active))
        batches = [
            outcomes(agent.table.design, agent.table.inclusion(agent.batch_size))
            for agent in self.made.agents
        ]
        design = cloud.table.design
        prescribed = _Prescribed(design)
        cloud.table.design = prescribed  # type: ignore[assignment]
        total, changes = np.zeros_like(self.params), {}
        for units, chance in sets:
            prescribed.units = np.array(units, np.int64)
            selection = cloud.select(0)
            for k, prob in zip(selection.active, selection.agent_prob, strict=True):
                if k not in changes:
                    changes[k] = self._mean_change(int(k), prob, batches[k])
            uploads = [Upload(changes[k], 0.0, 0) for k in selection.active]
            total += chance * self._aggregated(selection, uploads)
        cloud.table.design = design
        return total, len(sets) + sum(len(batch) for batch in batches)

    def _mean_change(self, agent: int, prob: float, batches: list) -> np.ndarray:
        return self._mean_over(
            agent, batches, lambda working: working.work(self.params, prob, 0).change
        )

    def _mean_over(self, agent: int, batches: list, turn: Callable) -> np.ndarray:
        """The mean of what an agent sends after a turn, over all its batches."""
        working = self._restore(agent)
        table, prescribed = working.table, _Prescribed(working.table.design)
        working.table = copy(table)
        working.table.design = prescribed  # type: ignore[assignment]
        working.table.policy = _frozen(table.policy)
        total = np.zeros_like(self.params)
        for units, chance in batches:
            self._restore(agent)
            prescribed.units = np.array(units, np.int64)
            total += chance * turn(working)
        working.table = table
        return total


class _MeanAgents:
    """The agents of a round, which send the mean over all their batches of what they would send."""

    def __init__(self, made: Federation, mean_turn: Callable[..., np.ndarray]) -> None:
        self.made, self.mean_turn = made, mean_turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made.objects, name)

    def work(self, turns: Turns, round_index: int, local: Local = PLAIN_LOCAL) -> Uploads:
        """The mean turn of every agent named."""
        rows = [None] * turns.agents.size if local.correction is None else local.correction
        changes = [
            self.mean_turn(int(k), float(step), local, row)
            for k, step, row in zip(turns.agents, turns.step, rows, strict=True)
        ]
        none = np.zeros(len(changes))
        watch = np.zeros((none.size, telemetry.TURN))
        return Uploads(np.array(changes), none, none.astype(np.int64), watch, watch[:, :0])


class _CorrectedRound(_Round):
    """The same for a round with a correction, or with the weights on the changes."""

    def _estimate(self, agents: Any, round_index: int) -> np.ndarray:
        """What the round makes of what the agents send; everything is then as it was before."""
        made, cloud = self.made, self.made.cloud
        assert isinstance(made.state, CorrectedState)
        nodes, kept = cloud.table.nodes.copy(), made.state.reference
        corrected.step(
            made.algorithm, cloud, Reference(*(values.copy() for values in kept)), agents,
            round_index,
        )  # fmt: skip
        moved, cloud.params = cloud.params, self.params.copy()
        cloud.table.nodes[:] = nodes
        return (self.params - moved) / float(made.algorithm.step_size)

    def sampled(self, round_index: int) -> np.ndarray:
        """The estimate of one round drawn at random."""
        for agent in range(len(self.made.agents)):
            self._restore(agent)
        return self._estimate(self.made.objects, round_index)

    def listed(self) -> tuple[np.ndarray, int]:
        """The expected estimate, and how many outcomes it took; linear as in the plain method."""
        cloud, agents = self.made.cloud, self.made.agents
        sets = outcomes(cloud.table.design, cloud.table.inclusion(cloud.num_active))
        batches = [
            outcomes(agent.table.design, agent.table.inclusion(agent.batch_size))
            for agent in agents
        ]

        def mean_turn(agent, step, local, correction):
            def turn(working):
                return working.take_turn(
                    self.params, step, 0, local=local, correction=correction
                ).change

            return self._mean_over(agent, batches[agent], turn)

        design = cloud.table.design
        prescribed = _Prescribed(design)
        cloud.table.design = prescribed  # type: ignore[assignment]
        total, senders = np.zeros_like(self.params), _MeanAgents(self.made, mean_turn)
        for units, chance in sets:
            prescribed.units = np.array(units, np.int64)
            total += chance * self._estimate(senders, 0)
        cloud.table.design = design
        return total, len(sets) + sum(len(batch) for batch in batches)
