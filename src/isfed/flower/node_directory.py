"""Who is there: which node of Flower is which agent.

Flower's node ids are random numbers. Where nodes are registered under names, the names tell the
agents apart, and nobody can claim to be another. Otherwise every node is asked for its number, and
asked again until it answers; the first to claim a number keeps it while it is online.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from logging import INFO, WARNING
from typing import Any

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from isfed.flower import message_exchange, wire_format
from isfed.flower.array_records import shown

SHOWN = 10  # agents named in a log line
RETRY_SECONDS = 5.0  # until a node that failed to answer is asked again


class Roll:
    """The online agents by number; `names` are the registered names of agents 0 to K - 1.

    `patience` is how long a node may take to say who it is before it is asked again.
    """

    def __init__(
        self, num_agents: int, names: Sequence[str] | None = None, *, patience: float = 120.0
    ) -> None:
        if names is not None and (len(names) != num_agents or len(set(names)) != num_agents):
            raise ValueError(f"names must be {num_agents} different names, one per agent")
        self.num_agents, self.patience = num_agents, max(patience, 1.0)
        self.names = None if names is None else {name: k for k, name in enumerate(names)}
        self.claims: dict[int, int] = {}  # node id -> agent, as answered
        self.ignored: set[int] = set()
        self.doubted: set[str] = set()  # names that two nodes had, reported once
        self._asked: dict[str, tuple[int, float]] = {}  # question -> node, when to ask again
        self._failed: dict[int, float] = {}  # node -> when to ask again
        self.seen: set[int] = set()  # agents that have been online at least once

    def online(self, grid: Grid) -> dict[int, int]:
        """Agent -> node id of those online and known now; does not wait for anybody."""
        try:
            nodes: list[Any] = list(grid.get_nodes())
        except httpx.HTTPError as error:
            log(WARNING, "the list of nodes could not be fetched: %s", shown(error))
            return {}
        here: dict[int, int] = {}
        if self.names is not None:
            here = {self.names[n.name]: n.node_id for n in self._unique(nodes)}
        else:
            ids = [node.node_id for node in nodes]
            self._ask(grid, ids)
            self._hear(grid)
            for node in self.claims:  # in the order in which they claimed
                if node in ids:
                    here.setdefault(self.claims[node], node)
        self.seen.update(here)
        return here

    def _unique(self, nodes: list[Any]) -> list[Any]:
        """Those with a name of ours that no other node has: of two, one is not the agent."""
        assert self.names is not None
        counts = Counter(node.name for node in nodes)
        for name in self.names:
            if counts[name] > 1 and name not in self.doubted:
                self.doubted.add(name)
                log(WARNING, "%s nodes are registered as %s: which is the agent cannot be told, "
                    "and none is asked; `flwr supernode unregister` those that are not",
                    counts[name], name)  # fmt: skip
        return [node for node in nodes if node.name in self.names and counts[node.name] == 1]

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        """Ask those who have not said who they are, unless a question is on its way."""
        now = time.monotonic()
        self._asked = {q: (n, until) for q, (n, until) in self._asked.items() if until > now}
        self._failed = {n: until for n, until in self._failed.items() if until > now}
        known = {*self.claims, *self.ignored, *self._failed}
        known.update(node for node, _ in self._asked.values())
        unknown = [node for node in nodes if node not in known]
        queries = [
            Message(RecordDict(), dst_node_id=n, message_type=MessageType.QUERY, ttl=self.patience)
            for n in unknown
        ]
        if not queries:
            return
        for node, question in zip(unknown, message_exchange.push(grid, queries), strict=True):
            if question is not None:
                self._asked[question] = (node, now + self.patience)

    def _hear(self, grid: Grid) -> None:
        """Take the answers that have come; a node that failed is asked again."""
        found, unreadable = message_exchange.pull(
            grid, {q: node for q, (node, _) in self._asked.items()}
        )
        again = time.monotonic() + RETRY_SECONDS
        for question in unreadable:
            self._failed[self._asked.pop(question)[0]] = again
        for question, reply in found.items():
            node, _ = self._asked.pop(question)
            if reply.has_error():
                reason = shown(reply.error.reason)
                log(WARNING, "node %s could not say which agent it is: %s", node, reason)
                self._failed[node] = again
                continue
            agent = _claimed(reply)
            if agent is None or not 0 <= agent < self.num_agents:
                self.ignored.add(node)
                log(WARNING, "node %s is none of the agents 0 to %s", node, self.num_agents - 1)
                continue
            if agent in self.claims.values():
                log(INFO, "node %s says that it is agent %s, as another did", node, agent)
            self.claims[node] = agent

    def wait(self, grid: Grid, *, seconds: float) -> None:
        """Wait until all agents are there, at most so long; then go on with those who are."""
        until = time.monotonic() + seconds
        while True:
            here = self.online(grid)
            if len(here) == self.num_agents:
                log(INFO, "all %s agents are online", self.num_agents)
                return
            if time.monotonic() >= until:
                log(WARNING, "%s", self._missing(here))
                return
            time.sleep(message_exchange.POLL_SECONDS)

    def _missing(self, here: dict[int, int]) -> str:
        """Who is not there, and what it may be."""
        absent = [k for k in range(self.num_agents) if k not in here]
        some = ", ".join(str(k) for k in absent[:SHOWN]) + (", ..." if len(absent) > SHOWN else "")
        return (
            f"{len(here)} of {self.num_agents} agents are online; missing: {some}. Is their "
            "SuperNode running, its key registered, and its clock right? Flower locks out a node "
            "whose clock is 5 seconds ahead or 5 minutes behind, and calls it offline: run "
            "`isfed federation check` on its host"
        )


def _claimed(reply: Message) -> int | None:
    """The number in an answer, None if it holds none."""
    try:
        record: Any = reply.content[wire_format.ORDER]
        agent = record.get("agent")
    except (KeyError, ValueError, AttributeError):
        return None
    return agent if type(agent) is int else None  # true is no number
