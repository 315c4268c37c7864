"""The turns of one round: who was asked, what each of them sent back, and when."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from isfed.federation.agent import Upload
from isfed.federation.round_reports import Timing
from isfed.flower import wire_format
from isfed.flower.array_records import shown
from isfed.flower.message_exchange import Answers, exchange

REFUSED = Upload(np.empty(0), 0.0, 0)  # stands for a reply that cannot be read: of no model's shape
CLOCK_SECONDS = 1.0  # clocks that differ by more are reported; Flower locks out a node at 5


class Turns:
    """What agents are asked in a round that ends `time_limit` seconds from now, and their answers.

    `agents` are those drawn, `read` reads a reply, and `clocks` holds the agents whose clock has
    been reported as wrong; it is added to.
    """

    def __init__(
        self, agents: np.ndarray, read: Callable[[RecordDict], Any], *, time_limit: float,
        clocks: set[int],
    ) -> None:  # fmt: skip
        self.agents, self.reader, self.clocks = agents, read, clocks
        self.began, self.until = time.time(), time.monotonic() + time_limit
        self.places: list[int] = []  # of the messages among those drawn
        self.messages: list[Message] = []
        self.read: dict[int, Any] = {}  # by place among those drawn
        self.metrics: dict[int, MetricRecord] = {}  # by agent
        self.answers: Answers | None = None

    def ask(self, place: int, message: Message) -> None:
        """Add the message for the agent at that place."""
        self.places.append(place)
        self.messages.append(message)

    def exchange(self, grid: Grid, *, enough: float, patient: bool) -> None:
        """Send, collect and read, until all or the share `enough` of those drawn have answered."""
        self.answers = exchange(
            grid,
            self.messages,
            until=self.until,
            enough=math.ceil(enough * len(self.agents)) if enough < 1.0 else math.inf,
            patient=patient,
            counts=lambda sent, reply: self._read(self.places[sent], reply),
        )
        for sent in self.answers.unreadable:
            self.read[self.places[sent]] = REFUSED

    def take(self, replies: Iterable[Message]) -> None:
        """Read replies that Flower's own loop has collected."""
        # Only now: a message gets its id when it is sent.
        sent = [message.metadata for message in self.messages]
        places = {(m.message_id, m.dst_node_id): p for m, p in zip(sent, self.places, strict=True)}
        nodes = {m.message_id: m.dst_node_id for m in sent}
        for reply in replies:
            ident, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            if reply.has_error():
                node = nodes.get(ident, node)  # may come from the SuperLink itself
            place = places.get((ident, node))
            if place is not None and place not in self.read:
                self._read(place, reply)

    def uploads(self) -> list[Any]:
        """One per agent drawn, None for those who failed or did not answer."""
        return [self.read.get(place) for place in range(len(self.agents))]

    def timing(self, *, patient: bool) -> Timing:
        """When the answers came; unknown after Flower's own loop."""
        timing = Timing.unknown(len(self.agents))
        if self.answers is None:
            return timing
        for sent, seconds in self.answers.seconds.items():
            timing.seconds[self.places[sent]] = seconds
        for sent in self.answers.late:
            timing.late[self.places[sent]] = True
        return timing._replace(patient=patient)

    def _read(self, place: int, reply: Message) -> bool:
        """Keep what an agent sent: an upload, REFUSED, or None if it failed; whether it is good."""
        agent = int(self.agents[place])
        self.read[place] = None
        try:
            if reply.has_error():
                # The last line of a traceback says what happened; a hostile one may be endless.
                lines = str(reply.error.reason)[-2000:].strip().splitlines() or [""]
                reason = shown(lines[-1])
                if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
                    reason += f" ({wire_format.NOT_FLOWERS})"
                log(WARNING, "agent %s failed: error %s, %s", agent, reply.error.code, reason)
                return False
            self._check_clock(agent, reply.metadata.created_at)
            self.read[place] = self.reader(reply.content)
            told = reply.content.get(wire_format.METRICS)
            if isinstance(told, MetricRecord):
                self.metrics[agent] = told
        except Exception as error:  # whatever a hostile reply can cause
            log(WARNING, "agent %s: %s", agent, shown(error, 500))
            self.read[place] = REFUSED
            return False
        return True

    def _check_clock(self, agent: int, written: float) -> None:
        """Say once that an agent's clock is wrong, before Flower locks it out without a word."""
        now = time.time()
        wrong = max(written - now, self.began - written)
        if wrong > CLOCK_SECONDS and agent not in self.clocks:
            self.clocks.add(agent)
            which = "ahead of" if written > now else "behind"
            log(
                WARNING,
                "the clock of agent %s is %.1f s %s ours; Flower locks out a node that is 5 s "
                "ahead or 300 s behind, and calls it offline",
                agent, wrong, which,
            )  # fmt: skip
