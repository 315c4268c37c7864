"""One agent: E_k weighted steps from the cloud's model, and one score of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.argument_checks import as_numbers, check_fields, check_whole, shown
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream
from isfed.federation.messages import PLAIN_LOCAL, LocalOptions, weighted_local_step
from isfed.federation.problem_arrays import (
    agent_risks,
    batch_means,
    check_batch,
    drawn_rows,
    row_losses,
)
from isfed.problems import FederatedData, Problem
from isfed.problems.compiled_losses import moved_target
from isfed.problems.losses import num_params_of
from isfed.sampling import policies
from isfed.sampling.designs import Design, WithReplacement
from isfed.sampling.policies import Policy, Refresh, Score, Table
from isfed.sampling.telemetry import TurnWatch


@dataclass(frozen=True)
class Upload:
    """What an agent sends to the cloud after its turn.

    Args:
        change: (M,) its model minus the one that it was sent, w_{k,E_k} - w_{i-1}.
        score: how large its gradients are, as its policy defines it.
        gradients: how many example gradients it computed.
        noise_share: what the turn leaves of the variance of one example, if it was asked for.
        loss: its risk at the model that it was sent, if it was asked for.
        gradient: (M,) the gradient of that risk, likewise.
        velocity: (M,) its momentum at the end of the turn, if it has one.
    """

    change: np.ndarray
    score: float
    gradients: int
    noise_share: float | None = None
    loss: float | None = None
    gradient: np.ndarray | None = None
    velocity: np.ndarray | None = None


@dataclass(frozen=True)
class AgentConfig:
    """What the cloud tells every agent once, before the first round.

    Args:
        num_agents: K.
        step_size: mu, the size of a local step.
        examples: the policy by which an agent draws its examples.
        example_design: the design by which it draws them.
        agents: the policy by which agents are drawn, which says what score to report.
        divide_by_steps: whether a step is divided by E_k, as in eq. (8).
    """

    num_agents: int
    step_size: float
    examples: Policy
    example_design: Design
    agents: Policy
    divide_by_steps: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        check_whole(self.num_agents, name="num_agents", least=1)

    def local_step(self, steps: int, prob: float | None, scale: float | None = None) -> float:
        """The size of a local step, of so many, of an agent drawn with that p_k."""
        divisor = steps if self.divide_by_steps else 1
        return weighted_local_step(self.step_size, divisor, self.num_agents, prob, scale)


@compiled
def score_of_turn(rule, rate, steps, batch, spread, stored, gradient, memory):
    """What an agent reports after its turn, see `agent_score`."""
    return policies.agent_score(rule, rate, steps, batch, spread, stored, gradient, memory, 0)


@compiled
def score_of_examples(norms, gradient, steps, batch, floor, equal):
    """The score of eq. (48) from the norms of all examples."""
    square = 0.0
    for j in range(gradient.size):
        square += gradient[j] * gradient[j]
    return policies.score_of_norms(norms, norms.size, square, steps, batch, floor, equal)


class Agent:
    """One agent: its examples, their scores, and what it remembers for the score that it reports.

    It does not know where it runs; `key` and its `index` address its random numbers.

    Args:
        index: its number, 0 to K - 1.
        data: its features (N_k, M) and targets (N_k,).
        loss: a `Loss`.
        work: E_k and B_k, the local steps of a turn and the examples of a step.
        rules: the rules that the cloud sent it.
    """

    def __init__(
        self,
        index: int,
        data: tuple[np.ndarray, np.ndarray],
        loss: Any,
        work: tuple[int, int],
        rules: AgentConfig,
    ) -> None:
        self.index = check_whole(index, name="index", least=0)
        if not (isinstance(data, tuple) and len(data) == 2):
            raise TypeError(f"data={shown(data)} must be (features, targets)")
        if not (isinstance(work, tuple) and len(work) == 2):
            raise TypeError(f"work={shown(work)} must be (local_steps, batch_size)")
        if not isinstance(rules, AgentConfig):
            raise TypeError(f"rules={shown(rules)} must be AgentConfig")
        if not callable(getattr(loss, "gradient", None)):
            raise TypeError(f"loss={shown(loss)} needs gradient(params, x, y, weight)")
        self.features = as_numbers(data[0], name="features")
        self.targets = as_numbers(data[1], name="targets")
        refused = getattr(loss, "not_for_objects", None)  # what `gradient` alone cannot do
        if refused is not None:
            raise ValueError(refused)
        self.loss = loss
        self.local_steps, self.batch_size = work  # E_k, B_k
        num_examples = len(self.targets)
        if len(self.features) != num_examples:
            raise ValueError(f"{len(self.features)} rows of features but {num_examples} targets")
        check_whole(self.local_steps, name="local_steps", least=1)
        batch_size = check_whole(self.batch_size, name="batch_size", least=1)
        check_batch(batch_size, num_examples, rules.example_design, agent=self.index)
        self.rules = rules
        self.key = np.uint64(0)
        self.table = Table(num_examples, rules.examples, rules.example_design)
        num_params = num_params_of(loss, self.features.shape[1])
        self.watch = self._new_watch()
        self.memory = np.full(policies.memory_size(rules.agents, num_params), -1.0)

    def work(
        self, params: np.ndarray, agent_prob: float, round_index: int, *, shift: Any = None
    ) -> Upload:
        """One turn of Algorithm 1's inner loop; `shift` is how far the true model has drifted."""
        step = self.rules.local_step(self.local_steps, agent_prob)
        return self.take_turn(params, step, round_index, shift=shift)

    def take_turn(
        self,
        params: np.ndarray,
        step: float,
        round_index: int,
        *,
        local: LocalOptions = PLAIN_LOCAL,
        shift: Any = None,
        steps: int | None = None,
        correction: np.ndarray | None = None,
        velocity: np.ndarray | None = None,
    ) -> Upload:
        """`steps` local steps (E_k unless given) from a model; `step` has its weight in it.

        `shift` is how far the true model has drifted, `correction` is added to every gradient;
        `velocity` is that of the momentum, and is left as it is at the end of the turn.
        """
        rules = self.rules
        num_examples = len(self.targets)
        num_steps = self.local_steps if steps is None else steps
        stream = Stream.at(self.key, round_index=round_index, agent=self.index)
        gradients = 0
        if rules.examples.refresh == Refresh.ALL and not local.full_batch:
            self.table.replace(self.norms_at(params, shift=shift)[0])  # eq. (49)
            gradients = num_examples
        model = params.copy()
        first_moment = second_moment = 0.0
        self.watch = self._new_watch()
        for _ in range(num_steps):
            batch, weight, share = self._batch(stream, local)
            gradient, norms = np.zeros(model.size), np.empty(0)
            if batch.size:
                gradients += batch.size
                x, y = self._examples(batch, shift)
                gradient, norms = self.loss.gradient(model, x, y, weight)
            elif correction is None:
                continue  # else it is a step of the correction alone
            direction = _direction(local, gradient, model - params, correction, velocity)
            model -= step * direction
            for weighted in norms * share:
                first_moment += weighted
                second_moment += weighted * weighted
            if local.full_batch:
                continue
            if not rules.examples.equal:
                known = norms if rules.examples.learns else self.table.scores[batch]
                self.watch.batch(share, known)
            self.table.refresh(batch, norms)
        size = self.batch_size if local.batch is None else local.batch
        drawn = num_steps * (num_examples if local.full_batch else size)
        moments = (first_moment / drawn, second_moment / drawn) if drawn else (0.0, 0.0)
        score = self._score(params, model, step, num_steps, moments)
        return Upload(model - params, score, gradients)

    def _batch(
        self, stream: Stream, local: LocalOptions
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The examples of a step, their weights in its mean, and their shares 1 / (N_k p_n)."""
        num_examples = len(self.targets)
        if local.full_batch:
            ones = np.ones(num_examples)
            return np.arange(num_examples), ones, ones
        size = self.batch_size if local.batch is None else local.batch
        batch, example_prob = self.table.draw(size, stream)
        weight = share = 1.0 / (num_examples * example_prob)
        if batch.size != size:  # a design of random size: the mean is over B_k
            weight = share * (batch.size / size)
        return batch, weight, share

    def _new_watch(self) -> TurnWatch:  # telemetry of a turn, which stays with the agent
        design, floor = self.rules.example_design, self.rules.examples.floor
        capped = not isinstance(design, WithReplacement)
        return TurnWatch(len(self.targets), floor, capped=capped)

    def norms_at(self, params: np.ndarray, *, shift: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The gradient norm of every example, and the gradient of the agent's risk."""
        x, y = self._examples(slice(None), shift)
        gradient, norms = self.loss.gradient(params, x, y, np.ones(len(y)))
        return norms, gradient

    def gradient_at(self, params: np.ndarray) -> np.ndarray:
        """(M,) the gradient of the agent's risk."""
        return self.norms_at(params)[1]

    def loss_at(self, params: np.ndarray) -> float:
        """The agent's risk."""
        return float(agent_risks(self._alone(), np.zeros(1, np.int64), params)[0])

    def sampled_loss_at(self, params: np.ndarray, round_index: int, *, count: int = 1) -> float:
        """The mean loss of examples drawn uniformly; `key` is that of the risks."""
        points = Stream.at(self.key, round_index=round_index, agent=self.index).uniforms(count)
        losses = row_losses(self._alone(), drawn_rows(points, len(self.targets)), params)
        return float(batch_means(losses, np.array([count]))[0])

    def _alone(self) -> Problem:
        """A problem of this agent's data."""
        data = FederatedData(self.features, self.targets, np.array([0, len(self.targets)]))
        return Problem(data, self.loss, self.local_steps, self.batch_size)

    def score_at(self, params: np.ndarray, *, shift: Any = None) -> float:
        """The score of eq. (48) from all the examples, at any model."""
        norms, gradient = self.norms_at(params, shift=shift)
        examples = self.rules.examples
        return score_of_examples(
            norms, gradient, self.local_steps, self.batch_size, examples.floor, examples.equal
        )

    def _examples(self, rows: Any, shift: Any) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.features[rows], self.targets[rows]
        return (x, y) if shift is None or not shift.size else (x, shifted_targets(x, y, shift))

    def _score(self, params, model, step, num_steps, moments) -> float:
        """What the cloud's policy asks the agent to report."""
        rules = self.rules
        if not rules.agents.learns:
            return 0.0
        first_moment, second_moment = moments
        spread = second_moment if rules.examples.equal else first_moment * first_moment
        stored = -1.0
        if rules.examples.refresh == Refresh.TOUCHED and rules.agents.score != Score.BOUND:
            mean = self.table.mean_seen()
            stored = mean * mean
        gradient = (params - model) / (step * num_steps)
        return score_of_turn(
            int(rules.agents.score), rules.agents.rate, num_steps, self.batch_size,
            spread, stored, gradient, self.memory,
        )  # fmt: skip


def _direction(local: LocalOptions, gradient, moved, correction, velocity) -> np.ndarray:
    """Where a local step goes, before its step size: prox, correction and momentum added."""
    direction = gradient
    if local.prox != 0.0:
        direction = direction + local.prox * moved
    if correction is not None:
        direction = direction + correction
    if local.momentum != 0.0 and velocity is not None:
        velocity[:] = local.momentum * velocity + direction
        direction = direction + local.momentum * velocity if local.nesterov else velocity.copy()
    return direction


@compiled
def shifted_targets(features, targets, shift):
    """The targets when the true model has moved by `shift`: the same noise, a new signal."""
    moved = np.empty(targets.size)
    for row in range(targets.size):
        moved[row] = moved_target(features, targets, row, shift)
    return moved
