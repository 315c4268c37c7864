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
import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from isfed.base.argument_checks import check_whole
from isfed.flower import message_exchange, wire_format
from isfed.flower.array_records import printable

MOST_NAMED = 10  # agents named in a log line
RETRY_SECONDS = 5.0  # until a node that failed to answer is asked again
LARGEST_CLAIM = 10.0  # medians: an agent cannot count for more by claiming more examples


def find_nodes(
    grid: Grid, *, least: int, seconds: float = 120.0, by_examples: bool = False
) -> dict[str, Any]:
    """What `Strategy` must know of the agents, from the nodes that are online.

    It waits until `least` nodes are there, and returns `num_agents` and, where nodes are registered
    under names, the sorted `names`; Flower's simulation has none. All nodes found become agents, so
    give the number that you expect: a job that continues needs the same agents.

        strategy = flower.Strategy(algorithm, **flower.find_nodes(grid, least=20))

    Args:
        grid: Flower's, as the server app gets it.
        least: how many nodes to wait for.
        seconds: how long to wait, before it is an error.
        by_examples: also ask every agent how many examples it has, for `agent_weights`; clients
            answer by `app.query()(flower.tell_examples(...))`. What an agent claims counts up to
            ten times the median.
    """
    check_whole(least, name="least", least=1)
    until = time.monotonic() + seconds
    while len(nodes := list(grid.get_nodes())) < least:
        if time.monotonic() >= until:
            raise ValueError(
                f"{len(nodes)} nodes are online after {seconds:g} seconds, and least={least}: "
                "start the other SuperNodes, or lower `least`"
            )
        time.sleep(message_exchange.POLL_SECONDS)
    names = sorted(node.name or "" for node in nodes)
    named = "" not in names and len(set(names)) == len(names)
    known: dict[str, Any] = {"num_agents": len(nodes), "names": names if named else None}
    if by_examples:
        known["agent_weights"] = _ask_examples(grid, nodes, known["names"], until)
    return known


def _ask_examples(grid: Grid, nodes: list[Any], names: list[str] | None, until: float) -> list:
    """How many examples each agent says it has."""
    queries = {
        place: Message(RecordDict(), dst_node_id=node.node_id, message_type=MessageType.QUERY)
        for place, node in enumerate(nodes)
    }
    replies = message_exchange.exchange(grid, queries, until=until).replies
    sizes = np.zeros(len(nodes))
    for place, node in enumerate(nodes):
        reply = replies.get(place)
        record: Any = None if reply is None or reply.has_error() else reply.content.get("isfed")
        answer: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
        agent = answer.get("agent") if names is None else names.index(node.name)
        size = answer.get("examples")
        if type(agent) is not int or not 0 <= agent < len(nodes) or type(size) is not int:
            raise ValueError(
                f"node {node.name or node.node_id} did not say how many examples it has: its app "
                "needs app.query()(flower.tell_examples(...))"
            )
        sizes[agent] = max(size, 0)
    if not sizes.all():
        raise ValueError(f"agent {int(np.argmin(sizes))} has no examples, or two have one number")
    return np.minimum(sizes, LARGEST_CLAIM * np.median(sizes)).tolist()


class NodeDirectory:
    """The online agents by number.

    Args:
        num_agents: K.
        names: the registered names of agents 0 to K - 1.
        patience: how long a node may take to say who it is before it is asked again, in seconds.
    """

    def __init__(
        self, num_agents: int, names: Sequence[str] | None = None, *, patience: float = 120.0
    ) -> None:
        if names is not None and (len(names) != num_agents or len(set(names)) != num_agents):
            raise ValueError(f"names must be {num_agents} different names, one per agent")
        self.num_agents, self.patience = num_agents, max(patience, 1.0)
        self.names = None if names is None else {name: k for k, name in enumerate(names)}
        self.claims: dict[int, int] = {}  # node id -> agent, as answered
        self._ignored: set[int] = set()
        self._doubted: set[str] = set()  # names that two nodes had, reported once
        self._asked: dict[str, int] = {}  # question -> node
        self._ask_again: dict[int, float] = {}  # node -> when, if it has not answered

    def online(self, grid: Grid) -> dict[int, int]:
        """Agent -> node id of those online and known now; does not wait for anybody."""
        try:
            nodes: list[Any] = list(grid.get_nodes())
        except httpx.HTTPError as error:
            log(WARNING, "the list of nodes could not be fetched: %s", printable(error))
            return {}
        if self.names is not None:
            return self._named(nodes, self.names)
        ids = [node.node_id for node in nodes]
        self._ask(grid, ids)
        self._hear(grid)
        here: dict[int, int] = {}
        for node, agent in self.claims.items():  # in the order in which they claimed
            if node in ids:
                here.setdefault(agent, node)
        return here

    def _named(self, nodes: list[Any], names: dict[str, int]) -> dict[int, int]:
        """Those with a name of ours that no other node has: of two, one is not the agent."""
        counts = Counter(node.name for node in nodes)
        for name in names:
            if counts[name] > 1 and name not in self._doubted:
                self._doubted.add(name)
                log(WARNING, "%s nodes are registered as %s: which is the agent cannot be told, "
                    "and none is asked; `flwr supernode unregister` those that are not",
                    counts[name], name)  # fmt: skip
        ours = [node for node in nodes if node.name in names and counts[node.name] == 1]
        return {names[node.name]: node.node_id for node in ours}

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        """Ask those who have not said who they are, unless a question is on its way."""
        now = time.monotonic()
        self._ask_again = {node: t for node, t in self._ask_again.items() if t > now}
        self._asked = {q: node for q, node in self._asked.items() if node in self._ask_again}
        known = {*self.claims, *self._ignored, *self._ask_again}
        unknown = [node for node in nodes if node not in known]
        queries = [
            Message(RecordDict(), dst_node_id=n, message_type=MessageType.QUERY, ttl=self.patience)
            for n in unknown
        ]
        questions = message_exchange.push(grid, queries) if queries else []
        for node, question in zip(unknown, questions, strict=True):
            if question is not None:
                self._asked[question], self._ask_again[node] = node, now + self.patience

    def _hear(self, grid: Grid) -> None:
        """Take the answers that have come; a node that failed is asked again."""
        replies, unreadable = message_exchange.pull(grid, self._asked)
        again = time.monotonic() + RETRY_SECONDS
        for question in unreadable:
            self._ask_again[self._asked.pop(question)] = again
        for question, reply in replies.items():
            node = self._asked.pop(question)
            if reply.has_error():
                reason = printable(reply.error.reason)
                log(WARNING, "node %s could not say which agent it is: %s", node, reason)
                self._ask_again[node] = again
                continue
            record = reply.content.get(wire_format.REQUEST)
            agent = record.get("agent") if isinstance(record, ConfigRecord) else None
            if type(agent) is not int or not 0 <= agent < self.num_agents:  # true is no number
                self._ignored.add(node)
                log(WARNING, "node %s is none of the agents 0 to %s", node, self.num_agents - 1)
                continue
            if agent in self.claims.values():
                log(INFO, "node %s says that it is agent %s, as another did", node, agent)
            self.claims[node] = agent

    def wait(self, grid: Grid, *, seconds: float) -> None:
        """Wait until all agents are there, at most so long; then go on with those who are."""
        until = time.monotonic() + seconds
        while len(here := self.online(grid)) < self.num_agents:
            if time.monotonic() >= until:
                absent = [str(k) for k in range(self.num_agents) if k not in here]
                dots = [] if len(absent) <= MOST_NAMED else ["..."]
                log(WARNING, "%s of %s agents are online; missing: %s. Is their SuperNode running, "
                    "its key registered, and its clock right? Flower locks out a node whose clock "
                    "is 5 seconds ahead or 5 minutes behind, and calls it offline: run "
                    "`isfed federation check` on its host", len(here), self.num_agents,
                    ", ".join(absent[:MOST_NAMED] + dots))  # fmt: skip
                return
            time.sleep(message_exchange.POLL_SECONDS)
        log(INFO, "all %s agents are online", self.num_agents)
