"""A correction whose agents and cloud are apart: each c_k is with its agent, c with the cloud.

An agent does not know whether its upload arrived and was accepted. It keeps the news of its last
turn until the next order names the last turn that the cloud accepted, and with which gain, and only
then moves c_k. So c stays the mean of the c_k through lost uploads, refused uploads, agents that
are killed, and a cloud that is killed and repeats a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isfed.base.arithmetic import inner
from isfed.base.compiled import compiled
from isfed.federation import correction
from isfed.federation.agent import Agent, Upload
from isfed.federation.correction import (
    DIFFERENCE,
    DRIFT,
    GAIN,
    MEAN_NOISE,
    SQUARE,
    TURNS,
    CorrectionRule,
    Reference,
    average_rate,
    corrections_of,
    make_reference,
    score_of_news,
    step_and_move,
    take_gain,
)

NEVER = -1
ONE = np.zeros(1, np.int64)


@dataclass(frozen=True, eq=False)
class Terms:
    """What the cloud tells an agent about a correction, beside the model.

    rule: the correction.
    centre: (M,) c.
    accepted: the round of the agent's last turn that the cloud accepted, -1 for none.
    gain: with which c_k moves by the news of that turn.
    """

    rule: CorrectionRule
    centre: np.ndarray
    accepted: int
    gain: float


def told_news(rule: CorrectionRule, sent: np.ndarray, reach: float, centre: np.ndarray):
    """v_k from what an agent sent; agent and cloud compute the same number."""
    pull = -sent / reach
    return pull - centre if rule.kind == DRIFT else pull


class OwnMemory:
    """What an agent keeps: c_k, and the news of its last turn until it knows what became of it."""

    def __init__(self, rule: CorrectionRule, num_params: int) -> None:
        self.rule = rule
        self.reference = make_reference(rule, 1, num_params)  # its `news` are the last accepted
        self.news = np.zeros(num_params)  # of the turn that nothing is known of yet
        # The last turn accepted, the turn that nothing is known of, and its MEAN_NOISE.
        self.turns = np.array([NEVER, NEVER])
        self.noise = np.zeros(1)
        self.reach = np.zeros(1)  # the step size of all turns of a job; 0 before the first
        self.buffers = np.zeros(num_params, bool)  # what has no gradient, and no memory of one

    def settle(self, terms: Terms) -> None:
        """Move c_k if the cloud has accepted the last turn, and forget its news if it has not."""
        accepted, waiting = self.turns
        reference = self.reference
        if terms.accepted != accepted:
            if waiting == NEVER or terms.accepted != waiting:
                raise ValueError(
                    f"begin a new job: the cloud accepted this agent's turn of round "
                    f"{terms.accepted}, but it knows of rounds {accepted} and {waiting} only (-1: "
                    "none). Its files were lost, or the cloud went back to an old checkpoint"
                )
            reference.own[0] += terms.gain * self.news
            if reference.news.size:
                reference.news[0] = self.news
            reference.book[0, TURNS] += 1.0
            reference.book[0, MEAN_NOISE] = self.noise[0]
            self.turns[0] = waiting
        self.turns[1] = NEVER
        reference.centre[:] = terms.centre

    def correction(self) -> np.ndarray | None:
        """(M,) c - c_k, which is added to every gradient; None if steps are not steered."""
        if self.rule.kind != DRIFT:
            return None
        return corrections_of(self.rule, self.reference, ONE)[0]

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
        """Keep the news of a turn; the upload gets the numbers that the cloud needs.

        upload: its change is what is really sent; its score is the spread of the examples.
        reach: the step size of the whole turn.
        share: what a turn leaves of the variance of one example, (1 - B_k / N_k) / (E_k B_k).
        """
        rule, reference = self.rule, self.reference
        book = reference.book[0]
        if self.reach[0] not in (0.0, reach):
            raise ValueError(
                f"the step size of this job changed from {self.reach[0]:g} to {reach:g} without "
                "notice; a correction divides changes by it, so begin a new job"
            )
        self.reach[0] = reach
        news = told_news(rule, upload.change, reach, reference.centre)
        news[self.buffers] = 0.0
        gradient = news + self.base
        shown = upload.score + inner(news, news) - inner(gradient, gradient)
        rate = average_rate(rule, book[TURNS])
        self.noise[0] = book[MEAN_NOISE] + rate * (shown - book[MEAN_NOISE])
        self.news[:] = news
        reference.own[0] = self.base  # where c_k will start from if the turn is accepted
        self.turns[1] = round_index
        agreement = inner(news, reference.news[0]) if reference.news.size else 0.0
        silent = not rule.scored or rule.second_moment
        noise = 0.0 if silent else share * max(self.noise[0], 0.0)
        return replace(upload, score=math.sqrt(noise), agreement=agreement)

    def state(self) -> dict[str, np.ndarray]:
        """What the next turn needs."""
        found = self.reference._asdict()
        return {
            **found, "waiting": self.news, "turns": self.turns, "noise": self.noise,
            "reach": self.reach,
        }  # fmt: skip

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state of a model of the same shape."""
        if state["waiting"].shape != self.news.shape:
            raise ValueError(
                f"the memory of gradients has the shape {state['waiting'].shape}, and the model "
                f"{self.news.shape}; the model must not change during a job: begin a new one"
            )
        self.reference = Reference(*(state[name].copy() for name in Reference._fields))
        self.news, self.turns = state["waiting"].copy(), state["turns"].copy()
        self.noise, self.reach = state["noise"].copy(), state["reach"].copy()


def corrected_turn(
    agent: Agent, own: OwnMemory, terms: Terms, params: np.ndarray, round_index: int
) -> Upload:
    """A turn under a correction, before its news is kept: `own.take` does that."""
    own.settle(terms)
    rules = agent.rules
    step = rules.step_size / agent.local_steps
    upload = agent.take_turn(params, step, round_index, correction=own.correction())
    return replace(upload, change=own.shown(upload.change, rules.step_size))


def noise_share(agent: Agent) -> float:
    """What a turn of an agent leaves of the variance of one example."""
    return correction.noise_share(
        len(agent.targets), agent.batch_size, agent.local_steps, agent.rules.example_design
    )


@compiled
def _absorb(rule, reference, step_size, num_active, heard, params, agents, weight, news, reports):
    """As `correction.absorb`, with the c_k out of reach; `reports` are (scores, agreements)."""
    scores, agreements = reports
    total, move = np.zeros(params.size), np.zeros(params.size)
    for i in range(agents.size):
        square = 0.0
        for j in range(params.size):
            total[j] += weight[i] * news[i, j]
            square += news[i, j] * news[i, j]
        # Nobody's news can agree more than this with its news before, whatever it says.
        most = math.sqrt(square * reference.book[agents[i], SQUARE])
        agreement = min(max(agreements[i], -most), most)
        gain = take_gain(
            rule, reference.book, reference.pool, agents[i], square, agreement, weight[i]
        )
        for j in range(params.size):
            move[j] += gain * news[i, j]
        scores[i] = score_of_news(rule, reference.book, agents[i], scores[i] * scores[i])
    step_and_move(rule, reference, step_size, num_active, heard, params, total, move)


class MeanMemory:
    """What the cloud keeps: c, a few numbers of every agent, and which turn it last accepted."""

    def __init__(self, rule: CorrectionRule, num_agents: int, num_params: int) -> None:
        self.rule = rule
        whole = make_reference(rule, num_agents, 0)
        nobody = np.zeros((0, num_params))
        self.reference = Reference(np.zeros(num_params), nobody, nobody, whole.book, whole.pool)
        self.accepted = np.full(num_agents, NEVER)
        self.buffers = np.zeros(num_params, bool)  # as in `OwnMemory`

    def terms(self, agent: int) -> Terms:
        """What to tell an agent that is to work."""
        reference = self.reference
        gain = float(reference.book[agent, GAIN])
        return Terms(self.rule, reference.centre, int(self.accepted[agent]), gain)

    def absorb(
        self, params: np.ndarray, step_size: float, num_active: int, round_index: int,
        agents: np.ndarray, weights: np.ndarray, uploads: Sequence[Upload], heard: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """The model after a round, and the scores of the agents heard; `heard` of c counts."""
        centre = self.reference.centre
        news = [told_news(self.rule, upload.change, step_size, centre) for upload in uploads]
        for row in news:
            row[self.buffers] = 0.0
        scores = np.array([np.nan_to_num(u.score, posinf=0.0) for u in uploads])
        agreements = np.nan_to_num(np.array([u.agreement for u in uploads]))
        moved = params.copy()
        _absorb(
            self.rule, self.reference, step_size, num_active, heard, moved, agents, weights,
            np.array(news).reshape(-1, params.size), (scores, agreements),
        )  # fmt: skip
        self.accepted[agents] = round_index
        return moved, scores

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        reference = self.reference
        return {
            "centre": reference.centre, "book": reference.book, "pool": reference.pool,
            "accepted": self.accepted,
        }  # fmt: skip

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
        own = {name: state[name].copy() for name in ("centre", "book", "pool")}
        self.reference = self.reference._replace(**own)
        self.accepted = state["accepted"].copy()
