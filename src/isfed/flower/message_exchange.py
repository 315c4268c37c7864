"""A bounded exchange of messages: what came back, when, and what could not be read at all."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING

import httpx
from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from isfed.flower.array_records import shown

POLL_SECONDS = 0.5


@dataclass
class Answers:
    """The replies by the position of the message that they answer, and how long each took."""

    replies: dict[int, Message] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)  # came when the exchange could have ended
    unreadable: set[int] = field(default_factory=set)  # Flower itself could not decode them


def push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send; the ids of the messages, None for those that could not be sent."""
    try:
        ids = [ident or None for ident in grid.push_messages(list(messages))]
    except httpx.HTTPError as error:
        log(WARNING, "messages could not be sent: %s", shown(error))
        ids = []
    return ids if len(ids) == len(messages) else [None] * len(messages)


def pull(grid: Grid, asked: Mapping[str, int]) -> tuple[dict[str, Message], set[str]]:
    """The replies that are there, by the id of what they answer, and those beyond decoding.

    `asked` has the node to which every message went. One at a time: Flower hands out a reply once,
    and one that cannot be decoded raises, so that those fetched with it would be lost.
    """
    found: dict[str, Message] = {}
    unreadable: set[str] = set()
    for ident, node in asked.items():
        try:
            for reply in grid.pull_messages([ident]):
                about = reply.metadata
                # An error may come from the SuperLink, which names itself as its sender.
                if about.src_node_id != node and not reply.has_error():
                    log(WARNING, "node %s answered what node %s was asked", about.src_node_id, node)
                elif about.reply_to_message_id == ident:
                    found[ident] = reply
        except httpx.HTTPError as error:
            log(WARNING, "a reply could not be fetched, trying again: %s", shown(error))
        except Exception as error:  # whatever decoding hostile bytes can raise
            log(WARNING, "a reply cannot be decoded: %s", shown(repr(error)))
            unreadable.add(ident)
    return found, unreadable


def exchange(
    grid: Grid,
    messages: Sequence[Message],
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
    answers = Answers()
    if not messages:
        return answers
    began = time.monotonic()
    waiting = {ident: place for place, ident in enumerate(push(grid, messages)) if ident}
    nodes = [message.metadata.dst_node_id for message in messages]
    good = 0
    while waiting:
        closing, over = good >= enough, time.monotonic() >= until  # before looking a last time
        found, unreadable = pull(grid, {ident: nodes[place] for ident, place in waiting.items()})
        for ident in unreadable:
            answers.unreadable.add(waiting.pop(ident))
        for ident, reply in found.items():
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
