"""The agents of a federation as one object: what an algorithm asks them, and what it costs.

An algorithm talks to `Agents` and does not know where they are: compiled or as objects in this
process, as PyTorch models, or on other machines. What crosses is counted here, never by the method.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from isfed.base.random_streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.federation.ledger import BYTES, FORWARD, Ledger, first_entries
from isfed.federation.messages import (
    EVERY,
    PLAIN_LOCAL,
    Cohort,
    Facts,
    LocalOptions,
    TrainRequest,
    Updates,
    Uploads,
    Work,
)
from isfed.federation.problem_arrays import agent_risks, batch_means, drawn_rows, row_losses
from isfed.federation.virtual_clock import Clock, Speeds, Times
from isfed.problems import Problem

NO_SHIFT = np.empty(0)


class Agents(Protocol):
    """All the agents of one repetition, wherever they are."""

    ledger: Ledger
    num_agents: int  # K
    num_params: int  # M
    sizes: np.ndarray  # (K,) N_k
    local_steps: np.ndarray  # (K,) E_k
    batch_size: np.ndarray  # (K,) B_k
    clock: Clock  # how fast the agents are

    @property
    def optimum(self) -> np.ndarray:
        """(M,) w^o, for the oracle; an error where it is not known."""
        ...

    def key(self, purpose: Purpose) -> np.uint64:
        """The key of this repetition's random numbers for a purpose."""
        ...

    def stream(self, purpose: Purpose, round_index: int, agent: int = NO_AGENT) -> Stream:
        """Random numbers by address: the same whatever else was drawn."""
        ...

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        """One turn of every agent named."""
        ...

    def facts(self, client_weights: str = "uniform") -> Facts:
        """What the cloud knows of its agents, with c_k of the objective "uniform" or by "size"."""
        ...

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        """The turns of a cohort from the model that it is sent; of those that answer."""
        ...

    def losses(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n,) the risk of each of these agents at a model, (M,) or (n, M), from all its data.

        Args:
            sent: the agents have the model already.
            kept: they keep what they find.
        """
        ...

    def gradients(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n, M) the gradients of their risks, from all their data; options as for `losses`."""
        ...

    def sampled_losses(
        self, which: np.ndarray, params: np.ndarray, round_index: int, *, sent: bool = False,
        whole_batch: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """(n,) the loss of one example of each of these agents, drawn uniformly.

        Args:
            sent: the agents have the model already.
            whole_batch: the mean over B_k examples instead.
        """
        ...

    def scores_at(self, params: np.ndarray, *, charge: bool = True) -> np.ndarray:
        """(K,) every agent's score of eq. (48) at a model, from all its data."""
        ...

    def example_prob(self, params: np.ndarray) -> np.ndarray:
        """(rows,) p_n of every example, agent by agent, as the next turn would start from."""
        ...

    def use_clock(self, clock: Clock) -> None:
        """Charge virtual seconds from now on."""

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Times:
        """What turns of that many example gradients take: in a round, or as expected for None."""
        ...

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents answers in a round."""
        ...

    def elapse(self, seconds: float) -> None:
        """Let time pass, for a method with a schedule of its own."""

    def charge_messages(self, **entries: int) -> None:
        """Count more than one model down and one change up per turn, by entry of the ledger."""

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""


class KeyedAgents:
    """What all agents share, wherever they are: random numbers by address, and the ledger."""

    keys: Any  # by purpose
    ledger: Ledger

    def key(self, purpose: Purpose) -> np.uint64:
        return self.keys[purpose]

    def stream(self, purpose: Purpose, round_index: int, agent: int = NO_AGENT) -> Stream:
        return Stream.at(self.keys[purpose], round_index=round_index, agent=agent)

    def charge_messages(self, **entries: int) -> None:
        self.ledger.charge(**entries)


class AddressedAgents(KeyedAgents):
    """What all agents in this process share: their clock, and the book-keeping of what crosses."""

    work: Any  # the business of each kind of agents

    def __init__(self, problem: Problem, *, seed: int, repetition: int) -> None:
        self.problem = problem
        self.ledger = Ledger(**first_entries(problem.num_agents))
        self.num_agents = problem.num_agents
        self.num_params = problem.num_params
        self.sizes = problem.data.num_examples
        self.local_steps, self.batch_size = problem.local_steps, problem.batch_size
        # By purpose, as a list: looking up an enumeration in a dict takes as long as a short draw.
        self.keys = [stream_key(seed, repetition=repetition, purpose=p) for p in Purpose]
        self.clock = Clock()
        self.timed = False  # whether turns are charged in virtual seconds
        self.shift = NO_SHIFT  # how far the true model has drifted, (M,); empty without drift
        self._facts: dict[str, Facts] = {}

    def facts(self, client_weights: str = "uniform") -> Facts:
        if client_weights not in self._facts:
            weight = None if client_weights == "uniform" else self.sizes / self.sizes.mean()
            trained = getattr(self, "num_trained", self.num_params)  # a module also has buffers
            self._facts[client_weights] = Facts(
                self.num_agents, self.num_params, trained, weight, self.sizes, self.local_steps,
                self.batch_size,
            )  # fmt: skip
        return self._facts[client_weights]

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        who, local, place = cohort.agents, work.local, EVERY
        step = work.step(who, self.facts())
        if self.clock.drop > 0.0:
            here = self.answers(who, round_index)
            if not here.all():
                place = np.flatnonzero(here)
                who, step, local = who[place], step[place], local.rows(place)
        # Asked for a risk, the agents get the model with that question, before they work.
        losses = self.losses(who, sent, sent=local.sent) if "loss" in work.also else None
        if local.idle:
            uploads = Uploads.idle(who.size, self.num_params)
        else:
            local = local if losses is None else local.with_model
            uploads = self.work(TrainRequest(who, sent, step), round_index, local)
        for entry, number in work.extra.items():
            self.charge_messages(**{entry: number * who.size})
        gradients = self.gradients(who, sent, sent=True) if "gradient" in work.also else None
        changes, scores, _, watch, velocity = uploads
        return Updates(place, changes, scores, watch, velocity, losses, gradients)

    def use_clock(self, clock: Clock) -> None:
        self.clock, self.timed = clock, True
        self.__dict__.pop("speeds", None)
        self.__dict__.pop("messages", None)

    @cached_property
    def speeds(self) -> Speeds:
        """How fast every agent is."""
        return self.clock.speeds(self.keys[Purpose.SPEEDS], self.num_agents)

    @cached_property
    def messages(self) -> tuple[np.ndarray, np.ndarray]:
        """(K,) seconds of one model to every agent, and of one from it."""
        return self.clock.messages(self.speeds, self.num_params)

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Times:
        down, up = self.messages
        times = Times(down[which], examples / self.speeds.rate[which], up[which])
        if round_index is None:
            return times
        return self.clock.delayed(times, which, self.keys[Purpose.DELAYS], round_index)

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        return self.clock.answers(which, self.keys[Purpose.DELAYS], round_index)

    def elapse(self, seconds: float) -> None:
        if self.timed:
            self.ledger.seconds += seconds

    cross = KeyedAgents.charge_messages  # its name in version 0.1

    def advance_clock(
        self, which: np.ndarray, gradients: np.ndarray, round_index: int, local: LocalOptions
    ) -> None:
        """A synchronous round lasts as long as its slowest turn."""
        if self.timed and local.timed and which.size:
            times = self.times(which, gradients, round_index)
            seconds = times.compute if local.silent else times.compute + times.upload
            if not (local.silent or local.sent):
                seconds = seconds + times.download
            self.ledger.seconds += float(seconds.max())

    def charge_asked(
        self, which: np.ndarray, examples: Any, *, gradients: bool, sent: bool, kept: bool
    ) -> None:
        """A model down, that many evaluations of examples, and an answer up, from each of these.

        The answer is a vector if they were asked for gradients, else a number.
        """
        ledger, total = self.ledger, int(np.add.reduce(examples))
        ledger.models_down += 0 if sent else which.size
        if gradients:
            ledger.gradients += total
            ledger.models_up += 0 if kept else which.size
        else:
            ledger.forwards += total
            ledger.scalars_up += 0 if kept else which.size
        if self.timed and which.size:
            times = self.times(which, examples if gradients else FORWARD * examples, None)
            seconds = times.compute
            if not sent:
                seconds = seconds + times.download
            if not kept:
                short = BYTES / self.speeds.upload[which] + self.clock.latency
                seconds = seconds + (times.upload if gradients else short)
            ledger.seconds += float(seconds.max())

    def sampled_losses(
        self, which: np.ndarray, params: np.ndarray, round_index: int, *, sent: bool = False,
        whole_batch: bool = False,
    ) -> np.ndarray:  # fmt: skip
        counts = self.batch_size[which] if whole_batch else np.ones(which.size, np.int64)
        self.charge_asked(which, counts, gradients=False, sent=sent, kept=False)
        rows = []
        for agent, count in zip(which.tolist(), counts.tolist(), strict=True):
            points = self.stream(Purpose.RISKS, round_index, agent).uniforms(count)
            rows.append(
                self.problem.data.offsets[agent] + drawn_rows(points, int(self.sizes[agent]))
            )
        losses = row_losses(self.problem, np.concatenate([np.empty(0, np.int64), *rows]), params)
        return losses if not whole_batch else batch_means(losses, counts)

    def losses(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        which = np.asarray(which, np.int64)
        self.charge_asked(which, self.sizes[which], gradients=False, sent=sent, kept=kept)
        return agent_risks(self.problem, which, params)

    @property
    def optimum(self) -> np.ndarray:
        return self.problem.optimum

    def charge_turns(
        self, count: int, gradients: int, *, scored: bool, local: LocalOptions = PLAIN_LOCAL
    ) -> None:
        """A model and a probability down, a change and perhaps a score up, for every turn."""
        ledger = self.ledger
        ledger.gradients += gradients
        if not local.silent:
            ledger.models_down += 0 if local.sent else count
            ledger.models_up += count
            ledger.scalars_down += count
            ledger.scalars_up += count if scored else 0

    def scores_at(self, params: np.ndarray, *, charge: bool = True) -> np.ndarray:
        if charge:  # a model down to every agent, all its gradients, and one number up
            count, gradients = self.num_agents, int(self.sizes.sum())
            self.ledger.charge(models_down=count, scalars_up=count, gradients=gradients)
        return self._scores_at(params)

    def gradients(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        which = np.asarray(which, np.int64)
        self.charge_asked(which, self.sizes[which], gradients=True, sent=sent, kept=kept)
        return self._gradients_at(which, params)

    def _scores_at(self, params: np.ndarray) -> np.ndarray:
        """(K,) the scores of all agents at a model."""
        raise NotImplementedError

    def _gradients_at(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        """(n, M) the gradients of their risks, at one model or at one for each."""
        raise NotImplementedError
