"""Agents on other machines: what a method asks of them goes out as messages of Flower.

A request is addressed by the job, the round and the agent, so that an agent that is asked again
gives the same answer, bit for bit. Who does not answer is absent.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from isfed.base.random_streams import Purpose, stream_key
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import KeyedAgents
from isfed.federation.ledger import Ledger
from isfed.federation.messages import NOISE_SHARE, Cohort, Facts, Updates, Work
from isfed.federation.safety import ScoreRange
from isfed.federation.virtual_clock import Clock
from isfed.flower import wire_format
from isfed.flower.array_records import Layout
from isfed.flower.message_exchange import REFUSED, RoundMessages
from isfed.flower.node_directory import NodeDirectory
from isfed.flower.wire_format import (
    BATCH_LOSS,
    GRADIENT,
    LOSS,
    SAMPLED_LOSS,
    SCORE,
    WORK,
    AgentRequest,
)
from isfed.sampling import telemetry


class FlowerAgents(KeyedAgents):
    """The agents of a federation on Flower: `isfed.federation.agents.Agents` over messages.

    The model is one vector whose first entries are trained and whose last are buffers, as
    everywhere; in messages it has the order of the app's arrays.

    Args:
        layout: the arrays of the model.
        rules: what every agent is told.
        nodes: who is online.
        seed: the seed of all random draws.
        buffers: the names of the arrays that are not trained.
        weights: (K,) what every agent counts in the objective, of mean 1; None for all the same.
        scores: the range of scores that is accepted.
        time_limit: the longest that a round, or a question, may take, in seconds.
    """

    def __init__(
        self, layout: Layout, rules: AgentConfig, nodes: NodeDirectory, *, seed: int,
        buffers: tuple[str, ...], weights: np.ndarray | None, scores: ScoreRange,
        time_limit: float,
    ) -> None:  # fmt: skip
        self.layout, self.rules, self.nodes = layout, rules, nodes
        self.weights, self.scores = weights, scores
        self.buffers, self.time_limit = buffers, time_limit
        is_buffer = layout.mask(buffers)
        self.num_agents, self.num_params = rules.num_agents, is_buffer.size
        self.num_trained = int((~is_buffer).sum())
        # The places in the arrays of our entries; sorting keeps the order within each kind.
        self.order = np.argsort(is_buffer, kind="stable")
        self.keys = {p: stream_key(seed, repetition=0, purpose=p) for p in Purpose}
        self.ledger = Ledger()
        self.clock = Clock(drop=0.5)  # says that agents may be away; nothing is drawn from it
        self.job = ""  # agents begin anew when it changes
        self.grid: Grid | None = None
        self.config = ConfigRecord()  # the app's own, which goes along with every turn
        # Until which share of answers a round waits, and whether it waits for the late ones too.
        self.enough, self.patient = 1.0, True
        self.clocks: set[int] = set()  # agents whose clock has been reported
        self._work_sizes = np.zeros((self.num_agents, 2), np.int64)  # E_k and B_k; 0: not known
        self.round_index = 0  # of the last question about a model, for those without their own

    def facts(self, client_weights: str = "uniform") -> Facts:
        """What the cloud knows of its agents; sizes and steps are the agents' own affair."""
        known = self.num_agents, self.num_params, self.num_trained
        weight = None if client_weights == "uniform" else self.sizes
        return Facts(*known, weight, self.weights, None, None)

    @property
    def sizes(self) -> np.ndarray:
        """(K,) the sizes relative to their mean, if the cloud was told."""
        if self.weights is None:
            raise ValueError(
                "this method needs the sizes of the agents, which are not known over a network: "
                "Strategy(agent_weights=[...]), one number per agent, e.g. its examples"
            )
        return self.weights

    def work_sizes(self) -> np.ndarray:
        """(K, 2) E_k and B_k as the agents tell them; 1 for those who are away, and do not work."""
        unknown = np.flatnonzero(self._work_sizes[:, 0] == 0)
        asked = unknown[self.answers(unknown, 0)] if unknown.size else unknown
        if asked.size:
            sizes = self._question(WORK, asked, np.zeros(self.num_params), 0, sent=True)
            good = (sizes >= 1.0).all(axis=1)  # NaN is not
            self._work_sizes[asked[good]] = sizes[good]
        return np.maximum(self._work_sizes, 1)

    @property
    def local_steps(self) -> np.ndarray:
        return np.ascontiguousarray(self.work_sizes()[:, 0])

    @property
    def batch_size(self) -> np.ndarray:
        return np.ascontiguousarray(self.work_sizes()[:, 1])

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Any:
        raise ValueError("what turns take is known over a network only when they have ended")

    @property
    def optimum(self) -> np.ndarray:
        raise ValueError("the solution w^o is not known over a network")

    def scores_at(self, params: np.ndarray, *, charge: bool = True) -> np.ndarray:
        raise ValueError("no agent tells its score of eq. (48) over a network; use memory")

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents is online."""
        return np.isin(which, list(self.nodes.online(self._grid())))

    def elapse(self, seconds: float) -> None:
        """Nothing: real time passes by itself."""

    def state(self) -> dict[str, np.ndarray]:
        """Nothing: agents keep what they know themselves."""
        return {}

    def outward(self, vector: np.ndarray) -> np.ndarray:
        """(M,) our vector, or its trained part, in the order of the arrays."""
        arranged = np.zeros(self.num_params)
        arranged[self.order[: vector.size]] = vector
        return arranged

    def inward(self, vector: np.ndarray) -> np.ndarray:
        """(M,) a vector in the order of the arrays in ours."""
        return vector[self.order]

    def arrays(self, params: np.ndarray) -> ArrayRecord:
        """A model of ours as the app's arrays."""
        return self.layout.model(self.outward(params))

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        """The turns of a cohort from the model that it is sent; of those that answer."""
        turns = self.pack(cohort, sent, work, round_index)
        turns.exchange(self._grid(), enough=self.enough, patient=self.patient)
        return self.unpack(turns, work)

    def pack(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> RoundMessages:
        """The messages of a round, to those who are online."""

        def request(place: int) -> dict[str, Any]:
            own = work.rows(slice(place, place + 1))
            step, local = float(np.ravel(own.step_size)[0]), own.local
            vectors = {name: getattr(local, name) for name in ("correction", "velocity")}
            given = {n: self.outward(v[0])[None] for n, v in vectors.items() if v is not None}
            own_steps = math.isnan(step)  # step_size="auto"
            given_step = 1.0 if own_steps else step
            return {
                "own_steps": own_steps,
                "agent_prob": None if own.prob is None else float(own.prob[0]),
                "rules": replace(
                    self.rules, step_size=given_step, divide_by_steps=bool(own.divide)
                ),
                "local": replace(local, **given) if given else local,
                "scale": None if own.scale is None else float(own.scale[0]),
                "also": tuple(sorted(own.also)),
            }

        return self._messages(
            cohort.agents, sent, round_index,
            lambda content: wire_format.unpack_upload(content, self.layout), request,
        )  # fmt: skip

    def _messages(
        self, agents: np.ndarray, models: np.ndarray, round_index: int,
        read: Callable[[RecordDict], Any], request: Callable[[int], dict[str, Any]],
    ) -> RoundMessages:  # fmt: skip
        """A message to each of these agents that is online; `request` has what is asked of it."""
        online = self.nodes.online(self._grid())
        turns = RoundMessages(agents, read, time_limit=self.time_limit, clocks=self.clocks)
        common = AgentRequest(
            self.job, round_index, 0, None, int(self.keys[Purpose.EXAMPLES]), self.rules,
            self.scores, buffers=self.buffers,
        )  # fmt: skip
        shared = None if models.ndim > 1 else self.arrays(models)
        for place, agent in enumerate(agents.tolist()):
            if agent not in online:
                log(WARNING, "agent %s was drawn and is offline", agent)
                continue
            own = replace(common, agent=agent, **request(place))
            content = {
                wire_format.MODEL: shared or self.arrays(models[place]),
                wire_format.TRAIN_CONFIG: self.config,
                **wire_format.pack_request(own),
            }
            turns.messages[place] = Message(
                RecordDict(content),
                dst_node_id=online[agent],
                message_type=MessageType.TRAIN,
                ttl=self.time_limit,  # an agent must not work off rounds that are over
            )
        return turns

    def unpack(self, turns: RoundMessages, work: Work) -> Updates:
        """What came back; a reply that cannot be read is a change of no numbers."""
        uploads = {p: turns.read[p] for p in sorted(turns.read) if turns.read[p] is not None}
        count, size = len(uploads), self.num_params

        def vectors(name: str) -> np.ndarray:
            rows = np.full((count, size), np.nan)
            for row, upload in zip(rows, uploads.values(), strict=True):
                vector = getattr(upload, name)
                if vector is not None and vector.size == size:
                    row[:] = self.inward(vector)
            return rows

        def numbers(name: str) -> np.ndarray:
            values = [getattr(upload, name) for upload in uploads.values()]
            return np.array([np.nan if value is None else value for value in values], np.float64)

        # A model and a probability down, a change and perhaps a score up, for every answer.
        self.charge_messages(
            models_down=0 if work.local.sent else count,
            models_up=count * (1 + (GRADIENT in work.also)),
            scalars_down=count,
            scalars_up=count * ((LOSS in work.also) + bool(self.rules.agents.learns)),
        )
        self.charge_messages(**{entry: number * count for entry, number in work.extra.items()})
        return Updates(
            np.array(list(uploads), np.int64),
            vectors("change"),
            numbers("score"),
            np.zeros((count, telemetry.TURN)),
            vectors("velocity") if work.local.momentum != 0.0 else np.zeros((count, 0)),
            loss=numbers("loss") if LOSS in work.also else None,
            gradient=vectors("gradient") if GRADIENT in work.also else None,
            noise_share=numbers("noise_share") if NOISE_SHARE in work.also else None,
            timing=turns.timing(patient=self.patient),
        )

    def _question(
        self, ask: str, which: np.ndarray, params: np.ndarray, round_index: int | None = None,
        *, sent: bool = False, kept: bool = False, **more: Any,
    ) -> np.ndarray:  # fmt: skip
        """What these agents answer, in the order in which they were named; NaN for the absent."""
        round_index = self.round_index if round_index is None else round_index
        width = {GRADIENT: self.num_params, WORK: 2}.get(ask, 1)
        sampled = ask in (SAMPLED_LOSS, BATCH_LOSS)
        key = int(self.keys[Purpose.RISKS if sampled else Purpose.EXAMPLES])
        turns = self._messages(
            which, params, round_index,
            lambda content: wire_format.unpack_answer(content, ask, width),
            lambda place: {"ask": ask, "key": key, **more},
        )  # fmt: skip
        turns.exchange(self._grid(), enough=1.0, patient=True)
        answers = {p: a for p, a in turns.read.items() if a is not None and a is not REFUSED}
        rows = np.full((which.size, width), np.nan)
        for place, answer in answers.items():
            rows[place] = self.inward(answer) if ask == GRADIENT else answer
        up = {"models_up": 1} if ask == GRADIENT else {"scalars_up": width}
        for entry, number in {"models_down": 0 if sent else 1, **up}.items():
            self.charge_messages(**{entry: number * len(answers)})
        return rows if ask in (GRADIENT, WORK) else rows[:, 0]

    losses = partialmethod(_question, LOSS)  # (n,) the risks at a model
    gradients = partialmethod(_question, GRADIENT)  # (n, M) the gradients of these risks

    def sampled_losses(
        self, which: np.ndarray, params: np.ndarray, round_index: int, *, sent: bool = False,
        whole_batch: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """(n,) the loss of one example of each, or of a batch."""
        ask = BATCH_LOSS if whole_batch else SAMPLED_LOSS
        return self._question(ask, which, params, round_index, sent=sent)

    def released_scores(
        self, params: np.ndarray, scores: ScoreRange, noise: float, round_index: int
    ) -> np.ndarray:
        """(K,) the scores of all agents with noise of their own; NaN for those who are away."""
        which = np.arange(self.num_agents)
        given = {"scores": scores, "score_noise": noise}
        return self._question(SCORE, which, params, round_index, sent=True, **given)

    def _grid(self) -> Grid:
        if self.grid is None:
            raise ValueError("these agents can be asked only while a strategy runs")
        return self.grid
