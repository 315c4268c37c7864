"""Who is there: which node of Flower is which agent, and a bounded exchange of messages with them.

Flower's node ids are random numbers. Where nodes are registered under names, the names tell the
agents apart, and nobody can claim to be another. Otherwise every node is asked for its number
once, and the first to claim a number keeps it while it is online.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from collections.abc import Sequence
from logging import INFO, WARNING
from typing import Any

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from isfed.flower import wire

POLL_SECONDS = 0.5
QUERY_SECONDS = 30.0


def exchange(grid: Grid, messages: Sequence[Message], *, until: float) -> dict[int, Message]:
    """Send and collect; the replies that came before `until` (of time.monotonic), by position.

    Flower's own exchange looks every three seconds and gives no answer when the connection fails
    for a moment. Replies are matched by the message that they answer: the sender's name in an
    error reply may be the cloud's own.
    """
    if not messages:
        return {}
    try:
        ids = list(grid.push_messages(list(messages)))
    except httpx.HTTPError as error:
        log(WARNING, "the round's messages could not be sent: %s", error)
        return {}
    waiting = {ident: place for place, ident in enumerate(ids) if ident}
    replies: dict[int, Message] = {}
    while waiting and time.monotonic() < until:
        try:
            arrived = list(grid.pull_messages(list(waiting)))
        except httpx.HTTPError as error:
            log(WARNING, "replies could not be fetched, trying again: %s", error)
            arrived = []
        for reply in arrived:
            place = waiting.pop(reply.metadata.reply_to_message_id, None)
            if place is not None:
                replies[place] = reply
        if waiting:
            time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
    return replies


class Roll:
    """The online agents by number; `names` are the registered names of agents 0 to K - 1."""

    def __init__(self, num_agents: int, names: Sequence[str] | None = None) -> None:
        if names is not None and (len(names) != num_agents or len(set(names)) != num_agents):
            raise ValueError(f"names must be {num_agents} different names, one per agent")
        self.num_agents = num_agents
        self.names = None if names is None else {name: k for k, name in enumerate(names)}
        self.claims: dict[int, int] = {}  # node id -> agent, as answered
        self.ignored: set[int] = set()

    def online(self, grid: Grid, *, until: float) -> dict[int, int]:
        """Agent -> node id of those online now."""
        try:
            nodes: list[Any] = list(grid.get_nodes())
        except httpx.HTTPError as error:
            log(WARNING, "the list of nodes could not be fetched: %s", error)
            return {}
        if self.names is not None:
            return {self.names[n.name]: n.node_id for n in nodes if n.name in self.names}
        ids = [node.node_id for node in nodes]
        self._ask([i for i in ids if i not in self.claims and i not in self.ignored], grid, until)
        here: dict[int, int] = {}
        for node in self.claims:  # in the order in which they claimed
            if node in ids:
                here.setdefault(self.claims[node], node)
        return here

    def _ask(self, nodes: list[int], grid: Grid, until: float) -> None:
        """Ask unknown nodes which agent they are."""
        until = min(until, time.monotonic() + QUERY_SECONDS)
        queries = [
            Message(RecordDict(), dst_node_id=n, message_type=MessageType.QUERY, ttl=QUERY_SECONDS)
            for n in nodes
        ]
        for place, reply in exchange(grid, queries, until=until).items():
            node = nodes[place]
            agent = _claimed(reply)
            if agent is None or not 0 <= agent < self.num_agents:
                self.ignored.add(node)
                log(WARNING, "node %s is none of the agents 0 to %s", node, self.num_agents - 1)
            else:
                if agent in self.claims.values():
                    log(INFO, "node %s says that it is agent %s, as another did", node, agent)
                self.claims[node] = agent

    def wait(self, grid: Grid, *, seconds: float) -> None:
        """Wait until all agents are there, at most so long; then go on with those who are."""
        until = time.monotonic() + seconds
        while True:
            here = self.online(grid, until=until)
            if len(here) == self.num_agents:
                log(INFO, "all %s agents are online", self.num_agents)
                return
            if time.monotonic() >= until:
                log(WARNING, "%s of %s agents are online", len(here), self.num_agents)
                return
            time.sleep(POLL_SECONDS)


def _claimed(reply: Message) -> int | None:
    if reply.has_error() or wire.ORDER not in reply.content:
        return None
    record: Any = reply.content[wire.ORDER]
    agent = record.get("agent")
    return agent if isinstance(agent, int) else None
