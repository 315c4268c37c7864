"""A bounded exchange: enough answers, late answers, and a connection that fails for a moment."""

# pyright: reportMissingImports=false
import time

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from isfed.flower.message_exchange import exchange


class TimedGrid(Grid):
    """Node n answers at the n-th look; those in `broken` send what cannot be decoded."""

    def __init__(self, *, broken=(), unreachable=()):
        self.broken, self.unreachable = broken, set(unreachable)
        self.messages, self.look, self.asked = {}, 1, set()

    def set_run(self, run):
        """Nothing to set."""

    run = property(lambda self: None)  # pyright: ignore[reportAssignmentType]

    def create_message(self, *_, **__):
        """Deprecated in Flower."""

    def get_node_ids(self):
        """Not asked for."""
        return []

    get_nodes = get_node_ids
    send_and_receive = create_message  # pyright: ignore[reportAssignmentType]

    def push_messages(self, messages):
        """Everything is accepted."""
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"m{node}"
            self.messages[f"m{node}"] = message
        return list(self.messages)

    def pull_messages(self, message_ids):
        """One at a time; a look ends when something is asked for again."""
        (ident,) = message_ids
        message = self.messages[ident]
        if ident in self.asked:
            self.look, self.asked = self.look + 1, set()
        self.asked.add(ident)
        if self.look in self.unreachable:
            raise httpx.ConnectError("gone for a moment")
        node = message.metadata.dst_node_id
        if self.look < node:
            return []
        del self.messages[ident]
        if node in self.broken:
            raise KeyError("chunk")
        return [Message(RecordDict(), reply_to=message)]


def ask(grid, nodes=(1, 2, 3, 4, 5), **options):
    messages = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in nodes]
    options = {"until": time.monotonic() + 60.0, **options}
    return exchange(grid, dict(enumerate(messages)), **options)


def test_all_are_waited_for():
    answers = ask(TimedGrid())
    assert sorted(answers.replies) == [0, 1, 2, 3, 4]
    assert not answers.late
    times = [answers.seconds[place] for place in range(5)]
    assert times == sorted(times)


def test_enough_answers_close_an_impatient_exchange():
    answers = ask(TimedGrid(), enough=3, patient=False)
    assert sorted(answers.replies) == [0, 1, 2]
    assert not answers.late


def test_a_patient_exchange_marks_as_late_whom_the_other_kind_would_not_have_heard():
    answers = ask(TimedGrid(), enough=3, patient=True)
    assert sorted(answers.replies) == [0, 1, 2, 3, 4]
    assert answers.late == {3, 4}


def test_only_good_answers_count_towards_enough():
    answers = ask(TimedGrid(), enough=3, patient=False, counts=lambda place, _: place != 1)
    assert sorted(answers.replies) == [0, 1, 2, 3]


def test_what_cannot_be_decoded_is_reported_and_the_rest_collected():
    answers = ask(TimedGrid(broken={2, 4}))
    assert sorted(answers.replies) == [0, 2, 4]
    assert answers.unreadable == {1, 3}


def test_a_connection_that_fails_for_a_moment_loses_nothing():
    answers = ask(TimedGrid(unreachable={1, 3, 4}))
    assert sorted(answers.replies) == [0, 1, 2, 3, 4]


def test_the_limit_ends_it_with_what_is_there():
    answers = ask(TimedGrid(), nodes=(1, 99), until=time.monotonic() - 1.0)
    assert sorted(answers.replies) == [0]


@pytest.mark.parametrize("pushed", [[], [None] * 5])
def test_messages_that_could_not_be_sent_are_not_waited_for(monkeypatch, pushed):
    monkeypatch.setattr(TimedGrid, "push_messages", lambda *_: pushed)
    assert not ask(TimedGrid()).replies
