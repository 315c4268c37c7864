"""Messages to agents and their replies: sent, collected until a deadline, read as untrusted."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import httpx
import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from isfed.federation.agent import Upload
from isfed.federation.messages import Timing
from isfed.flower.array_records import printable
from isfed.flower.wire_format import METRICS, NOT_FLOWERS

POLL_SECONDS = 0.5
CLOCK_SECONDS = 1.0  # clocks that differ by more are reported; Flower locks out a node at 5
REFUSED = Upload(np.empty(0), 0.0, 0)  # stands for a reply that cannot be read: of no model's shape


@dataclass
class Answers:
    """The replies by the place of the message that they answer."""

    replies: dict[int, Message] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # how long each reply took
    late: set[int] = field(default_factory=set)  # came when the exchange could have ended
    unreadable: set[int] = field(default_factory=set)  # Flower itself could not decode them


def _is_from(reply: Message, node: int) -> bool:
    """Whether the node that was asked has answered; errors may come from the SuperLink."""
    return reply.has_error() or reply.metadata.src_node_id == node


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send; the ids of the messages, None for those that could not be sent."""
    try:
        ids = [ident or None for ident in grid.push_messages(list(messages))]
    except httpx.HTTPError as error:
        log(WARNING, "messages could not be sent: %s", printable(error))
        ids = []
    return ids if len(ids) == len(messages) else [None] * len(messages)


def pull(grid: Grid, nodes: Mapping[str, int]) -> tuple[dict[str, Message], set[str]]:
    """The replies that are there, by the id of what they answer, and those beyond decoding.

    `nodes` has the node to which every message went. One at a time: Flower hands out a reply once,
    and one that cannot be decoded raises, so that those fetched with it would be lost.
    """
    replies: dict[str, Message] = {}
    unreadable: set[str] = set()
    for ident, node in nodes.items():
        try:
            for reply in grid.pull_messages([ident]):
                if not _is_from(reply, node):
                    sender = reply.metadata.src_node_id
                    log(WARNING, "node %s answered what node %s was asked", sender, node)
                elif reply.metadata.reply_to_message_id == ident:
                    replies[ident] = reply
        except httpx.HTTPError as error:
            log(WARNING, "a reply could not be fetched, trying again: %s", printable(error))
        except Exception as error:  # whatever decoding hostile bytes can raise
            log(WARNING, "a reply cannot be decoded: %s", printable(repr(error)))
            unreadable.add(ident)
    return replies, unreadable


def exchange(
    grid: Grid,
    messages: Mapping[int, Message],
    *,
    until: float,
    enough: float = math.inf,
    patient: bool = True,
    counts: Callable[[int, Message], bool] = lambda _, reply: not reply.has_error(),
) -> Answers:
    """Send and collect until all have answered or `until` (of time.monotonic) has come.

    When `enough` replies for which `counts` have come, the exchange ends, or, if it is `patient`,
    goes on and marks the others as late. Flower's own exchange looks every three seconds and gives
    no answer when the connection fails for a moment.
    """
    answers, began, good = Answers(), time.monotonic(), 0
    ids = push(grid, list(messages.values())) if messages else []
    waiting = {ident: place for ident, place in zip(ids, messages, strict=True) if ident}
    while waiting:
        closing, over = good >= enough, time.monotonic() >= until  # before looking a last time
        nodes = {i: messages[place].metadata.dst_node_id for i, place in waiting.items()}
        replies, unreadable = pull(grid, nodes)
        answers.unreadable.update(waiting.pop(ident) for ident in unreadable)
        for ident, reply in replies.items():
            place = waiting.pop(ident)
            answers.replies[place] = reply
            answers.seconds[place] = time.monotonic() - began
            good += counts(place, reply)
            if closing:
                answers.late.add(place)
        if over or (good >= enough and not patient):
            break
        if waiting:
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
    return answers


class RoundMessages:
    """What the agents of a cohort are asked, and what they answer.

    Args:
        agents: those drawn; messages and replies are known by their place among them.
        reader: reads the content of a reply.
        time_limit: how long to wait, in seconds from now.
        clocks: agents whose clock has been reported as wrong; it is added to.
    """

    def __init__(
        self, agents: np.ndarray, reader: Callable[[RecordDict], Any], *, time_limit: float,
        clocks: set[int],
    ) -> None:  # fmt: skip
        self.agents, self.reader, self.clocks = agents, reader, clocks
        self.began, self.until = time.time(), time.monotonic() + time_limit
        self.messages: dict[int, Message] = {}
        self.read: dict[int, Any] = {}  # REFUSED for what cannot be read, None for a failure
        self.metrics: dict[int, MetricRecord] = {}  # by agent
        self.answers: Answers | None = None

    def exchange(self, grid: Grid, *, enough: float, patient: bool) -> None:
        """Send, collect and read, until all or the share `enough` of those drawn have answered."""
        most = math.ceil(enough * len(self.agents)) if enough < 1.0 else math.inf
        self.answers = exchange(
            grid, self.messages, until=self.until, enough=most, patient=patient, counts=self._read
        )
        self.read |= dict.fromkeys(self.answers.unreadable, REFUSED)

    def take(self, replies: Iterable[Message]) -> None:
        """Read replies that Flower's own loop has collected."""
        # Only now: a message gets its id when it is sent.
        places = {message.metadata.message_id: p for p, message in self.messages.items()}
        for reply in replies:
            place = places.get(reply.metadata.reply_to_message_id)
            if place is None or place in self.read:
                continue
            if _is_from(reply, self.messages[place].metadata.dst_node_id):
                self._read(place, reply)

    def timing(self, *, patient: bool) -> Timing:
        """When the answers came; unknown after Flower's own loop."""
        timing = Timing.unknown(len(self.agents))
        if self.answers is None:
            return timing
        timing.seconds[list(self.answers.seconds)] = list(self.answers.seconds.values())
        timing.late[list(self.answers.late)] = True
        return timing._replace(patient=patient)

    def _read(self, place: int, reply: Message) -> bool:
        """Keep what an agent sent; whether it can be used."""
        agent = int(self.agents[place])
        self.read[place] = None
        try:
            if reply.has_error():
                # The last line of a traceback says what happened; a hostile one may be endless.
                lines = str(reply.error.reason)[-2000:].strip().splitlines() or [""]
                reason = printable(lines[-1])
                if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
                    reason += f" ({NOT_FLOWERS})"
                log(WARNING, "agent %s failed: error %s, %s", agent, reply.error.code, reason)
                return False
            self._check_clock(agent, reply.metadata.created_at)
            self.read[place] = self.reader(reply.content)
            metrics = reply.content.get(METRICS)
            if isinstance(metrics, MetricRecord):
                self.metrics[agent] = metrics
        except Exception as error:  # whatever a hostile reply can cause
            log(WARNING, "agent %s: %s", agent, printable(error, 500))
            self.read[place] = REFUSED
            return False
        return True

    def _check_clock(self, agent: int, written: float) -> None:
        """Say once that an agent's clock is wrong, before Flower locks it out without a word."""
        now = time.time()
        wrong = max(written - now, self.began - written)
        if wrong > CLOCK_SECONDS and agent not in self.clocks:
            self.clocks.add(agent)
            log(WARNING, "the clock of agent %s is %.1f s %s ours; Flower locks out a node that is "
                "5 s ahead or 300 s behind, and calls it offline",
                agent, wrong, "ahead of" if written > now else "behind")  # fmt: skip
