"""A certificate of unbiasedness: does a round estimate the gradient at the model it starts from?

The library's own agents and cloud make the round; only their gradients are held at that model
(eq. 14) and, where all outcomes can be listed, their draws are prescribed. So a wrong weight, a
wrong mean or a design that misses its inclusion probabilities shows. Where outcomes are listed, the
library's own designs are taken at their word (`isfed.sampling.designs.outcomes`); any other design
is drawn.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from isfed.base.argument_checks import check_seed, check_whole, checked, shown
from isfed.federation.agents import (
    PLAIN_LOCAL,
    AddressedAgents,
    LocalOptions,
    TrainRequest,
    Uploads,
)
from isfed.methods.by_score import ByScore
from isfed.methods.federated import Federated
from isfed.methods.object_federation import Federation
from isfed.methods.passes_over_agents import Passes
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.designs import Design
from isfed.sampling.designs.outcomes import TooManyError, outcomes
from isfed.sampling.policies import Refresh, ScorePolicy
from isfed.theory.probabilities import check_model
from isfed.theory.stable_step_size import explain_divergence, with_step_size

EXACT = 1e-9  # deviation, relative to the gradients, that rounding may leave in an exact sum


@dataclass(frozen=True, eq=False)
class Certificate:
    """How far the expected estimate of a round is from the gradient.

    Args:
        exact: whether all outcomes were listed; otherwise rounds were sampled.
        samples: how many outcomes were listed, or rounds sampled.
        gradient: (M,) the true gradient.
        deviation: (M,) the mean of the estimate minus the gradient; (T, M) if these are the rounds
            of a pass.
        stderr: the standard error of the deviation; zero if exact.
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

    def _sampled(self) -> str:
        if self.deviation.ndim == 1:
            return f"{self.samples} rounds sampled"
        return f"{self.samples} passes of {len(self.deviation)} rounds sampled, every round checked"

    def __str__(self) -> str:
        how = (
            f"all {self.samples} outcomes listed: largest deviation {self.largest:.1e} of the "
            f"gradients' length (rounding: {EXACT:.0e})"
            if self.exact
            else f"{self._sampled()}: largest deviation {self.largest:.2f} standard "
            f"errors (at most {self.threshold:.2f} at confidence {self.confidence:g})"
        )
        passed = "unbiased" if self.exact else "no bias found"  # a small one may need more samples
        return f"{passed if self.unbiased else 'BIASED'}; {how}"


class _Prescribed:
    """A design that draws prescribed units; the inclusion probabilities are the table's own."""

    fixed_size = True

    def __init__(self, design: Design) -> None:
        self.units = np.empty(0, np.int64)
        self.repeats = getattr(design, "repeats", False)

    def draw(self, inclusion, rng):
        return self.units


@checked
def certify(
    problem: Problem,
    algorithm: Any,
    *,
    params: np.ndarray | None = None,
    rounds: int = 20,
    samples: int = 2000,
    confidence: float = 0.999,
    seed: int = 0,
) -> Certificate:
    """Check whether a round of a method estimates the gradient of the risk without bias.

    After some ordinary rounds, in which the policies learn, the expected estimate of the next round
    is found at the model reached: by listing all outcomes if there are few, otherwise by sampling.

    Where agents are heard in passes, whole passes are sampled, each planned anew there. Every
    round of a pass must then estimate the gradient, on average over the plans. Given the earlier
    cohorts of its pass it does not.

    Args:
        problem: what is learned.
        algorithm: whose rounds are checked: a composition (`Federated`), or a method made of parts.
        params: (M,) where the ordinary rounds begin; zero unless given.
        rounds: how many ordinary rounds.
        samples: how many rounds, or passes, to sample if the outcomes cannot be listed.
        confidence: the probability that an unbiased algorithm passes, if sampled.
        seed: the seed of all random draws.

    Examples:
        >>> from isfed import PAPER, ISFedAvg
        >>> small = PAPER.replace(num_agents=5, num_examples=4, batch_size=(1, 2)).make()
        >>> certify(small, ISFedAvg(step_size="auto", num_active=2)).unbiased
        True
    """
    method = getattr(algorithm, "federated", algorithm)
    if not isinstance(method, Federated) or method.own_round:
        raise TypeError(
            f"algorithm={shown(algorithm)} must be made of parts, e.g. ISFedAvg(...) or "
            "Federated(...): a method with a round of its own has no estimator to look at"
        )
    check_whole(rounds, name="rounds", least=0)
    check_seed(seed)
    if samples < 2 or not 0.0 < confidence < 1.0:
        raise ValueError(
            f"samples={samples} must be at least 2 and confidence={confidence} between 0 and 1"
        )
    start = np.zeros(problem.num_params) if params is None else check_model(problem, params)
    problem = problem.batched_for(algorithm)
    algorithm = with_step_size(problem, algorithm, initial=start)
    made = Federation(problem, algorithm, seed=seed, repetition=0, initial=start)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(rounds):
            made.step(i)
    if not np.isfinite(made.state.params).all():
        raise ValueError(
            f"the {rounds} rounds before diverged: {explain_divergence(problem, algorithm)}"
        )
    return _Round(made, rounds).certificate(samples, confidence)


class _Round:
    """The round that comes next, with every gradient held at the model it starts from."""

    def __init__(self, made: Federation, round_index: int) -> None:
        self.made, self.state, self.first = made, made.state, round_index
        self.facts = made.method.facts(made.objects)
        params = made.state.params.copy()
        gradients = []
        for agent in made.agents:
            norms, gradient = agent.norms_at(params)
            gradients.append(gradient)
            if made.method.local.examples.refresh == Refresh.ALL:
                agent.table.replace(norms)
            at_params = partial(agent.loss.gradient, params)
            held: Any = SimpleNamespace(gradient=lambda _, *batch, at=at_params: at(*batch))
            agent.loss = held
        # K c_k times the gradient of every agent.
        self.means = (self.facts.weighed(1.0, slice(None)) * np.array(gradients).T).T
        self.tables = [agent.table.nodes.copy() for agent in made.agents]
        self.memories = [agent.memory.copy() for agent in made.agents]

    def certificate(self, samples: int, confidence: float) -> Certificate:
        """List all outcomes if possible, else sample."""
        gradient = self.means.mean(axis=0)
        scale = float(np.sqrt(np.mean(np.sum(self.means**2, axis=1))))
        try:
            mean, count = self.listed()
            exact = np.zeros(gradient.size)
            return Certificate(True, count, gradient, mean - gradient, exact, scale, 1.0)
        except TooManyError:
            pass
        estimates = np.array([self._sampled(i) for i in range(samples)])
        stderr = estimates.std(axis=0, ddof=1) / np.sqrt(samples)
        deviation = estimates.mean(axis=0) - gradient
        return Certificate(False, samples, gradient, deviation, stderr, scale, confidence)

    def _sampled(self, place: int) -> np.ndarray:
        """The estimate of a round, or those of all rounds of a pass, with draws of their own."""
        method, agents = self.made.method, self.made.objects
        for agent in range(len(self.made.agents)):
            self.restore(agent)
        if not isinstance(method.sampler, Passes):
            return self._estimate(method, agents, self.first + place)
        state = deepcopy(self.state)
        state.sampler.left[0], rounds = 0, len(state.sampler.cohorts)  # a new pass is planned
        first = self.first + place * rounds
        # The sampler's state is carried on, in place; scores learned do not alter a pass.
        return np.array([self._estimate(method, agents, first + i, state) for i in range(rounds)])

    def _estimate(
        self, method: Federated, agents: Any, round_index: int, state: Any = None
    ) -> np.ndarray:
        """What the estimator makes of what the agents send, as an estimate of the gradient."""
        state = deepcopy(self.state) if state is None else state  # parts may write into theirs
        opened = method.open(state, agents, round_index)
        updates = agents.train(opened.cohort, opened.sent, opened.work, round_index)
        step = method.estimator.combine(state.estimator, opened, updates, self.facts)[0]
        return -step / method.local.at(round_index)

    def restore(self, agent: int) -> None:
        """Make an agent what it was before its turn."""
        self.made.agents[agent].table.nodes[:] = self.tables[agent]
        self.made.agents[agent].memory[:] = self.memories[agent]

    def listed(self) -> tuple[np.ndarray, int]:
        """The expected estimate, and how many outcomes it took.

        Given the agents, the estimate is linear in what they send, so their means will do. A step's
        probabilities are fixed before its draw, so every step is as the first: one batch may serve
        for all of them, with a table that learns nothing in between.
        """
        method = self.made.method
        if not isinstance(method.sampler, ByScore) or isinstance(method.sampler, Passes):
            raise TooManyError  # what another sampler may draw is not known
        table = self.made.table
        if method.sampler.policy.refresh == Refresh.ALL:
            table.replace(self.facts.weighed(self.made.objects.scores_at(self.state.params)))
        sets = outcomes(table.design, table.inclusion(method.sampler.num_active))
        full = method.local.full_batch
        batches = [
            [((), 1.0)] if full else outcomes(a.table.design, a.table.inclusion(a.batch_size))
            for a in self.made.agents
        ]
        prescribed: Any = _Prescribed(table.design)
        method = replace(method, sampler=replace(method.sampler, design=prescribed))
        senders = _MeanAgents(self, batches)
        total = np.zeros(self.facts.num_trained)
        for units, chance in sets:
            prescribed.units = np.array(units, np.int64)
            total += chance * self._estimate(method, senders, self.first)
        return total, len(sets) + sum(len(batch) for batch in batches)


class _MeanAgents:
    """The agents of a round, which send the mean over all their batches of what they would send."""

    train = AddressedAgents.train

    def __init__(self, owner: _Round, batches: list) -> None:
        self.owner, self.batches = owner, batches
        self.sent: dict[Any, np.ndarray] = {}  # what an agent sends depends on nothing but these

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner.made.objects, name)

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        if local.momentum != 0.0:
            raise TooManyError  # the momenta that agents send too are not listed
        rows = [None] * turns.agents.size if local.correction is None else local.correction
        changes = []
        for k, step, row in zip(turns.agents.tolist(), turns.step.tolist(), rows, strict=True):
            place = (k, step, None if row is None else row.tobytes())
            if place not in self.sent:
                self.sent[place] = self._mean_change(
                    k, turns.params, step, round_index, local=local, correction=row
                )
            changes.append(self.sent[place])
        none = np.zeros(len(changes))
        watch = np.zeros((none.size, telemetry.TURN))
        sent = np.array(changes).reshape(-1, turns.params.size)
        return Uploads(sent, none, none.astype(np.int64), watch, watch[:, :0])

    def _mean_change(
        self, agent: int, params: np.ndarray, *turn: Any, **options: Any
    ) -> np.ndarray:
        """The mean of what an agent sends after a turn, over all its batches."""
        working = self.owner.made.agents[agent]
        table, prescribed = working.table, _Prescribed(working.table.design)
        policy = table.policy
        working.table = copy(table)
        working.table.design = prescribed  # type: ignore[assignment]
        # A table that learns nothing.
        working.table.policy = ScorePolicy(policy.name, policy.initial, Refresh.NEVER, policy.floor)
        total = np.zeros_like(params)
        for units, chance in self.batches[agent]:
            self.owner.restore(agent)
            prescribed.units = np.array(units, np.int64)
            total += chance * working.take_turn(params, *turn, **options).change
        working.table = table
        return total
