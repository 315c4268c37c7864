"""Control variates of agents that are on other machines: c_k stays with its agent, c in the cloud.

An agent does not know whether its upload was accepted. It keeps the innovation of its last turn
until the next message names the last turn that the cloud accepted, with its gain, and only then
moves c_k. So c stays the mean of the c_k through lost uploads, refused uploads, agents that are
killed, and a cloud that is killed and repeats a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import inner
from isfed.federation.agent import Agent, Upload
from isfed.federation.variate_updates import (
    DIFFERENCE,
    DRIFT,
    MEAN_NOISE,
    SQUARE,
    TURNS,
    CorrectionRule,
    Reference,
    average_rate,
    corrections_of,
    innovation_score,
    make_reference,
    noise_share,
    step_and_move,
    take_gain,
)

NEVER = -1


class VariateMessage(NamedTuple):
    """What the cloud tells the agents of a cohort about control variates, beside the model.

    Attributes:
        rule: how control variates are used.
        centre: (M',) c, of the trained part of the model.
        accepted: (n,) the round of each agent's last turn that the cloud accepted, -1 for none; a
            number in the message to one agent.
        gain: (n,) with which c_k moves by the innovation of that turn; likewise.
        varies: whether the step size is another one in every round.
    """

    rule: CorrectionRule
    centre: np.ndarray
    accepted: Any
    gain: Any
    varies: bool = False

    def rows(self, places: Any) -> VariateMessage:
        """The same for some of the agents."""
        return self._replace(accepted=self.accepted[places], gain=self.gain[places])

    def to_agent(self, place: int, centre: np.ndarray) -> VariateMessage:
        """The same for one agent, with c in the order of the model that it is sent."""
        accepted, gain = int(self.accepted[place]), float(self.gain[place])
        return VariateMessage(self.rule, centre, accepted, gain, self.varies)


def reported_innovation(
    rule: CorrectionRule, sent: np.ndarray, reach: float, centre: np.ndarray
) -> np.ndarray:
    """v_k from what an agent sent; agent and cloud compute the same number."""
    pull = -sent / reach
    return pull - centre if rule.kind == DRIFT else pull


class AgentVariate:
    """What an agent keeps: c_k, and the innovation of its last turn until that is accepted."""

    def __init__(self, rule: CorrectionRule, num_params: int) -> None:
        self.rule = rule
        self.reference = make_reference(rule, 1, num_params)  # of turns that were accepted
        self.pending = np.zeros(num_params)  # of the turn that nothing is known of yet
        # The last turn accepted, the turn that nothing is known of, and its MEAN_NOISE.
        self.turns = np.array([NEVER, NEVER])
        self.noise = np.zeros(1)
        self.reach = np.zeros(1)  # the step size of all turns of a job; 0 before the first
        self.buffers = np.zeros(num_params, bool)  # what has no gradient, and no memory of one
        self.varies = False  # whether the cloud has said that the step size changes

    def commit(self, message: VariateMessage) -> None:
        """Move c_k if the cloud has accepted the last turn; otherwise forget its innovation."""
        accepted, waiting = self.turns
        reference = self.reference
        if message.accepted != accepted:
            if waiting == NEVER or message.accepted != waiting:
                raise ValueError(
                    f"begin a new job: the cloud accepted this agent's turn of round "
                    f"{message.accepted}, but it knows of rounds {accepted} and {waiting} only "
                    "(-1: none). Its files were lost, or the cloud went back to an old checkpoint"
                )
            reference.own[0] += message.gain * self.pending
            if reference.news.size:
                reference.news[0] = self.pending
            reference.book[0, TURNS] += 1.0
            reference.book[0, MEAN_NOISE] = self.noise[0]
            self.turns[0] = waiting
        self.turns[1] = NEVER
        self.varies = message.varies
        reference.centre[:] = message.centre

    def correction(self) -> np.ndarray | None:
        """(M,) c - c_k, which is added to every gradient; None if steps are not steered."""
        if self.rule.kind != DRIFT:
            return None
        return corrections_of(self.rule, self.reference, np.zeros(1, np.int64))[0]

    @property
    def base(self) -> np.ndarray:
        """(M,) c_k: that of an agent never heard is c, if the rule says so."""
        reference = self.reference
        at_mean = self.rule.from_mean and reference.book[0, TURNS] == 0.0
        return reference.centre if at_mean else reference.own[0]

    def shown(self, change: np.ndarray, reach: float) -> np.ndarray:
        """(M,) what is sent of a change: without steered steps, what goes beyond c_k."""
        return change + reach * self.base if self.rule.kind == DIFFERENCE else change

    def take(self, upload: Upload, reach: float, share: float, round_index: int) -> Upload:
        """Keep the innovation of a turn; the upload gets the numbers that the cloud needs.

        Its score becomes the variance of the innovation that is due to the drawn examples.

        Args:
            upload: its change is what is really sent; its score is the spread of the examples.
            reach: the step size of the whole turn.
            share: what a turn leaves of the variance of one example, (1 - B_k / N_k) / (E_k B_k).
            round_index: the round of the turn.
        """
        rule, reference = self.rule, self.reference
        statistics = reference.book[0]  # of the agent's turns
        if self.reach[0] not in (0.0, reach) and not self.varies:
            raise ValueError(
                f"the step size of this job changed from {self.reach[0]:g} to {reach:g} without "
                "notice; a correction divides changes by it, so begin a new job"
            )
        self.reach[0] = reach
        innovation = reported_innovation(rule, upload.change, reach, reference.centre)
        innovation[self.buffers] = 0.0
        gradient = innovation + self.base
        shown = upload.score + inner(innovation, innovation) - inner(gradient, gradient)
        rate = average_rate(rule, statistics[TURNS])
        self.noise[0] = statistics[MEAN_NOISE] + rate * (shown - statistics[MEAN_NOISE])
        self.pending[:] = innovation
        reference.own[0] = self.base  # where c_k will start from if the turn is accepted
        self.turns[1] = round_index
        agreement = inner(innovation, reference.news[0]) if reference.news.size else 0.0
        silent = not rule.scored or rule.second_moment
        noise = 0.0 if silent else share * max(self.noise[0], 0.0)
        return replace(upload, score=noise, agreement=agreement)

    def state(self) -> dict[str, np.ndarray]:
        return {
            **self.reference._asdict(), "waiting": self.pending, "turns": self.turns,
            "noise": self.noise, "reach": self.reach,
        }  # fmt: skip

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if state["waiting"].shape != self.pending.shape:
            raise ValueError(
                f"the memory of gradients has the shape {state['waiting'].shape}, and the model "
                f"{self.pending.shape}; the model must not change during a job: begin a new one"
            )
        self.reference = Reference(*(state[name].copy() for name in Reference._fields))
        self.pending, self.turns = state["waiting"].copy(), state["turns"].copy()
        self.noise, self.reach = state["noise"].copy(), state["reach"].copy()


def corrected_turn(
    agent: Agent,
    own: AgentVariate,
    message: VariateMessage,
    params: np.ndarray,
    round_index: int,
    *,
    as_sent: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **options: Any,
) -> Upload:
    """A turn with control variates; `own` keeps its innovation until it is accepted.

    Args:
        agent: who works.
        own: its control variate.
        message: what the cloud says about control variates.
        params: (M,) the model that was sent.
        round_index: of the turn.
        as_sent: from a change to the one that the cloud will read, which may be rounded.
        options: the other arguments of `Agent.take_turn`.
    """
    own.commit(message)
    reach, steps = agent.rules.step_size, options.get("steps")
    step = reach / (agent.local_steps if steps is None else steps)
    upload = agent.take_turn(params, step, round_index, correction=own.correction(), **options)
    upload = replace(upload, change=as_sent(own.shown(upload.change, reach)))
    design = agent.rules.example_design
    share = noise_share(len(agent.targets), agent.batch_size, agent.local_steps, design)
    return own.take(upload, reach, share, round_index)


@compiled
def absorb_reports(
    rule, reference, step_size, num_active, heard, params, agents, weight, innovation, reports
):
    """As `absorb`, with the c_k out of reach; `reports` are (variances, agreements).

    Variances of the innovations come in, and scores go out.
    """
    scores, agreements = reports
    total, move = np.zeros(params.size), np.zeros(params.size)
    for i in range(agents.size):
        square = 0.0
        for j in range(params.size):
            total[j] += weight[i] * innovation[i, j]
            square += innovation[i, j] * innovation[i, j]
        # Cauchy-Schwarz: no innovation can agree more with the one before, whatever an agent says.
        most = math.sqrt(square * reference.book[agents[i], SQUARE])
        agreement = min(max(agreements[i], -most), most)
        gain = take_gain(
            rule, reference.book, reference.pool, agents[i], square, agreement, weight[i]
        )
        for j in range(params.size):
            move[j] += gain * innovation[i, j]
        scores[i] = innovation_score(rule, reference.book, agents[i], scores[i])
    step_and_move(rule, reference, step_size, num_active, heard, params, total, move)
