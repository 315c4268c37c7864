"""Agents on other machines: what a method asks of them goes out as messages of Flower.

An ask is addressed by the job, the round and the agent, so that an agent that is asked again gives
the same answer, bit for bit. Who does not answer is absent.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from isfed.base.random_streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.federation.agent import Rules, Upload
from isfed.federation.ledger import Ledger
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.score_bounds import ScoreRange
from isfed.federation.virtual_clock import Clock
from isfed.flower import wire_format
from isfed.flower.array_records import Layout
from isfed.flower.node_directory import Roll
from isfed.flower.round_messages import REFUSED, Turns
from isfed.sampling import telemetry


class FlowerAgents:
    """The agents of a federation on Flower, as far as a cloud needs them.

    The model is one vector whose first entries are trained and whose last are buffers, as
    everywhere; in messages it has the order of the app's arrays.

    Args:
        layout: the arrays of the model.
        rules: what every agent is told.
        roll: who is online.
        seed: the seed of all random draws.
        buffers: the names of the arrays that are not trained.
        weights: (K,) what every agent counts in the objective, of mean 1; None for all the same.
        scores: the range of scores that is accepted.
        time_limit: the longest that a round, or an ask, may take, in seconds.
    """

    def __init__(
        self, layout: Layout, rules: Rules, roll: Roll, *, seed: int = 0,
        buffers: tuple[str, ...] = (), weights: np.ndarray | None = None,
        scores: ScoreRange | None = None, time_limit: float = 600.0,
    ) -> None:  # fmt: skip
        self.layout, self.rules, self.roll = layout, rules, roll
        self.weights, self.scores = weights, scores or ScoreRange()
        self.buffers, self.time_limit = buffers, time_limit
        places = layout.places(buffers)
        self.num_agents, self.num_params = rules.num_agents, places.size
        self.num_trained = int((~places).sum())
        # The places in the arrays of our entries; sorting keeps the order within each kind.
        self.order = np.argsort(places, kind="stable")
        self.keys = {p: stream_key(seed, repetition=0, purpose=p) for p in Purpose}
        self.ledger = Ledger()
        self.clock = Clock(drop=0.5)  # says that agents may be away; nothing is drawn from it
        self.job = ""  # agents begin anew when it changes
        self.grid: Grid | None = None
        self.config = ConfigRecord()  # the app's own, which goes along with every turn
        # Until which share of answers a round waits, and whether it waits for the late ones too.
        self.enough, self.patient = 1.0, True
        self.clocks: set[int] = set()  # agents whose clock has been reported
        self._told = np.zeros((self.num_agents, 2), np.int64)  # E_k and B_k; 0: not known
        self.round_index = 0  # of the last question about a model, for those without their own

    def facts(self, client_weights: str = "uniform") -> Facts:
        """What the cloud knows of its agents; sizes and steps are the agents' own affair."""
        if client_weights != "uniform" and self.weights is None:
            raise ValueError(
                "the sizes of agents are not known over a network: Strategy(agent_weights=[...])"
            )
        weight = None if client_weights == "uniform" else self.weights
        count, size, trained = self.num_agents, self.num_params, self.num_trained
        return Facts(count, size, trained, weight, self.weights, None, None)

    @property
    def sizes(self) -> np.ndarray:
        """(K,) the sizes relative to their mean, if the cloud was told."""
        if self.weights is None:
            raise ValueError(
                "this method needs the sizes of the agents: Strategy(agent_weights=[...]), one "
                "number per agent, e.g. its examples"
            )
        return self.weights

    def work_sizes(self) -> np.ndarray:
        """(K, 2) E_k and B_k as the agents tell them; 1 for those who are away, and do not work."""
        unknown = np.flatnonzero(self._told[:, 0] == 0)
        asked = unknown[self.answers(unknown, 0)] if unknown.size else unknown
        if asked.size:
            told = self._question(wire_format.WORK, asked, np.zeros(self.num_params), 0, sent=True)
            good = (told >= 1.0).all(axis=1)  # NaN is not
            self._told[asked[good]] = told[good]
        return np.maximum(self._told, 1)

    @property
    def local_steps(self) -> np.ndarray:
        """(K,) E_k, for a method with a round of its own."""
        return np.ascontiguousarray(self.work_sizes()[:, 0])

    @property
    def batch_size(self) -> np.ndarray:
        """(K,) B_k, likewise."""
        return np.ascontiguousarray(self.work_sizes()[:, 1])

    def times(self, which: np.ndarray, examples: np.ndarray, round_index: int | None) -> Any:
        """Not known beforehand: an error says so."""
        raise ValueError("what turns take is known over a network only when they have ended")

    @property
    def optimum(self) -> np.ndarray:
        """Not known: an error says so."""
        raise ValueError("the solution w^o is not known over a network")

    def scores_at(self, params: np.ndarray, *, charge: bool = True) -> np.ndarray:
        """Not asked for: an error says so."""
        raise ValueError("no agent tells its score of eq. (48) over a network; use memory")

    def key(self, purpose: Purpose) -> np.uint64:
        """The key of the random numbers for a purpose."""
        return self.keys[purpose]

    def stream(self, purpose: Purpose, round_index: int, agent: int = NO_AGENT) -> Stream:
        """Random numbers by address: the same whatever else was drawn."""
        return Stream.at(self.keys[purpose], round_index=round_index, agent=agent)

    def cross(self, **messages: int) -> None:
        """Messages beyond one model down and one change up for every turn."""
        for entry, number in messages.items():
            setattr(self.ledger, entry, getattr(self.ledger, entry) + number)

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents is online."""
        here = self.roll.online(self._grid())
        return np.array([int(agent) in here for agent in which], dtype=bool)

    def elapse(self, seconds: float) -> None:
        """Nothing: real time passes by itself."""

    def outward(self, vector: np.ndarray) -> np.ndarray:
        """(M,) our vector, or its trained part, in the order of the arrays."""
        found = np.zeros(self.num_params)
        found[self.order[: vector.size]] = vector
        return found

    def inward(self, vector: np.ndarray) -> np.ndarray:
        """(M,) a vector in the order of the arrays in ours."""
        return vector[self.order]

    # -- turns -----------------------------------------------------------------------------------

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        """The turns of a cohort from the model that it is sent; of those that answer."""
        turns = self.pack(cohort, sent, work, round_index)
        turns.exchange(self._grid(), enough=self.enough, patient=self.patient)
        return self.unpack(turns, work)

    def pack(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Turns:
        """The messages of a round, to those who are online."""
        turns = self._turns(
            cohort.agents, lambda content: wire_format.unpack_upload(content, self.layout)
        )
        models = np.broadcast_to(sent, (cohort.agents.size, self.num_params))
        whole = None if sent.ndim > 1 else self.layout.model(self.outward(sent))
        for place, agent in enumerate(cohort.agents.tolist()):
            model = whole or self.layout.model(self.outward(models[place]))
            order = self._order(agent, place, work, round_index)
            self._ask(
                turns,
                place,
                {wire_format.MODEL: model, wire_format.TRAIN_CONFIG: self.config},
                order,
            )
        return turns

    def _turns(self, agents: np.ndarray, read: Any) -> Turns:
        self.online = self.roll.online(self._grid())
        return Turns(agents, read, time_limit=self.time_limit, clocks=self.clocks)

    def _ask(
        self, turns: Turns, place: int, content: dict[str, Any], order: wire_format.Order
    ) -> None:
        """Add the message for the agent at a place, if it is online."""
        node = self.online.get(order.agent)
        if node is None:
            log(WARNING, "agent %s was drawn and is offline", order.agent)
            return
        content |= {
            wire_format.ORDER: wire_format.pack_order(order),
            **wire_format.pack_vectors(order),
        }
        message = Message(
            RecordDict(content),
            dst_node_id=node,
            message_type=MessageType.TRAIN,
            ttl=self.time_limit,  # an agent must not work off rounds that are over
        )
        turns.ask(place, message)

    def _order(self, agent: int, place: int, work: Work, round_index: int) -> wire_format.Order:
        """What one agent of a cohort is told."""
        own = work.rows(slice(place, place + 1))
        step, local = np.ravel(own.step_size)[0], own.local
        vectors = {name: getattr(local, name) for name in ("correction", "velocity")}
        given = {n: self.outward(rows[0])[None] for n, rows in vectors.items() if rows is not None}
        terms = None
        if own.control is not None:
            terms = own.control.terms(0, self.outward(own.control.centre))
        return wire_format.Order(
            job=self.job,
            round_index=round_index,
            agent=agent,
            agent_prob=None if own.prob is None else float(own.prob[0]),
            key=int(self.keys[Purpose.EXAMPLES]),
            rules=replace(self.rules, step_size=float(step), divide_by_steps=bool(own.divide)),
            scores=self.scores,
            terms=terms,
            buffers=self.buffers,
            local=replace(local, **given) if given else local,
            scale=None if own.scale is None else float(own.scale[0]),
            also=tuple(sorted(own.also)),
        )

    def unpack(self, turns: Turns, work: Work) -> Updates:
        """What came back; a reply that cannot be read is a change of no numbers."""
        uploads = turns.uploads()
        place = np.array([p for p, upload in enumerate(uploads) if upload is not None], np.int64)
        given = [uploads[p] for p in place]
        count, size = len(given), self.num_params

        def rows(name: str, width: int = size) -> np.ndarray:
            found = np.full((count, width), np.nan)
            for row, upload in zip(found, given, strict=True):
                vector = getattr(upload, name)
                if vector is not None and vector.size == size:
                    row[:] = self.inward(vector)
            return found

        momentum = size if work.local.momentum != 0.0 else 0
        self._charge(count, work)
        return Updates(
            place,
            rows("change"),
            np.array([upload.score for upload in given], np.float64),
            np.zeros((count, telemetry.TURN)),
            rows("velocity", momentum) if momentum else np.zeros((count, 0)),
            loss=_numbers(given, "loss") if wire_format.LOSS in work.also else None,
            gradient=rows("gradient") if wire_format.GRADIENT in work.also else None,
            agreement=_numbers(given, "agreement"),
            timing=turns.timing(patient=self.patient),
        )

    def _charge(self, count: int, work: Work) -> None:
        """A model and a probability down, a change and perhaps a score up, for every answer."""
        down = 0 if work.local.sent else count
        self.cross(models_down=down, models_up=count, scalars_down=count)
        self.cross(scalars_up=count if self.rules.agents.learns else 0)
        self.cross(scalars_up=count * (wire_format.LOSS in work.also))
        self.cross(models_up=count * (wire_format.GRADIENT in work.also))
        self.cross(**{entry: number * count for entry, number in work.extra.items()})

    # -- questions -------------------------------------------------------------------------------

    def losses(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n,) the risk of each of these agents at a model; NaN for those who do not answer."""
        return self._question(wire_format.LOSS, which, params, self.round_index, sent=sent)

    def gradients(
        self, which: np.ndarray, params: np.ndarray, *, sent: bool = False, kept: bool = False
    ) -> np.ndarray:
        """(n, M) the gradients of their risks; NaN for those who do not answer."""
        return self._question(wire_format.GRADIENT, which, params, self.round_index, sent=sent)

    def sampled_losses(
        self, which: np.ndarray, params: np.ndarray, round_index: int, *, sent: bool = False
    ) -> np.ndarray:
        """(n,) the loss of one example of each of these agents; NaN as for `losses`."""
        return self._question(wire_format.SAMPLED_LOSS, which, params, round_index, sent=sent)

    def _question(
        self, ask: str, which: np.ndarray, params: np.ndarray, round_index: int, *, sent: bool
    ) -> np.ndarray:
        """What these agents answer, in the order in which they were named."""
        width = 2 if ask == wire_format.WORK else self.num_params
        turns = self._turns(which, lambda content: wire_format.unpack_answer(content, ask, width))
        models = np.broadcast_to(params, (which.size, self.num_params))
        whole = None if params.ndim > 1 else self.layout.model(self.outward(params))
        key = self.keys[Purpose.RISKS if ask == wire_format.SAMPLED_LOSS else Purpose.EXAMPLES]
        for place, agent in enumerate(which.tolist()):
            model = whole or self.layout.model(self.outward(models[place]))
            order = wire_format.Order(
                self.job, round_index, agent, None, int(key), self.rules, self.scores,
                buffers=self.buffers, ask=ask,
            )  # fmt: skip
            self._ask(
                turns,
                place,
                {wire_format.MODEL: model, wire_format.TRAIN_CONFIG: self.config},
                order,
            )
        turns.exchange(self._grid(), enough=1.0, patient=True)
        vectors = ask in (wire_format.GRADIENT, wire_format.WORK)
        found = np.full((which.size, width) if vectors else which.size, np.nan)
        count = 0
        for place, answer in turns.read.items():
            if answer is None or answer is REFUSED:
                continue
            found[place] = self.inward(answer) if ask == wire_format.GRADIENT else answer
            count += 1
        numbers = width if ask == wire_format.WORK else 1
        self.cross(models_down=0 if sent else count)
        self.cross(
            **{"models_up" if ask == wire_format.GRADIENT else "scalars_up": numbers * count}
        )
        return found

    def _grid(self) -> Grid:
        if self.grid is None:
            raise ValueError("these agents can be asked only while a strategy runs")
        return self.grid

    def state(self) -> dict[str, np.ndarray]:
        """Nothing: agents keep what they know themselves."""
        return {}


def _numbers(given: list[Upload], name: str) -> np.ndarray:
    """(m,) one number of every upload; NaN where it is missing."""
    values = [getattr(upload, name) for upload in given]
    return np.array([np.nan if value is None else value for value in values], np.float64)
