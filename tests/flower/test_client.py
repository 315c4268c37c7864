"""The agent's file, and what it does not believe of the cloud."""

# pyright: reportMissingImports=false
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from isfed import PAPER, ISFedAvg
from isfed.base.files import load_arrays
from isfed.federation.trust import ScoreRange
from isfed.flower import agent_turn, tell_agent, wire
from isfed.flower.arrays import Layout

PROBLEM = PAPER.replace(num_agents=2).make(seed=1)
RULES = ISFedAvg(step_size=0.01, num_active=1).rules(2)


def ask(tmp_path, *, round_index=0, job="job", handler=None, **fields):
    """One train message to agent 0, and its reply."""
    order = wire.pack_order(
        wire.Order(job, round_index, 0, 0.5, 2**64 - 3, RULES, ScoreRange(1e-6, 1e6))
    )
    for name, value in fields.items():
        order[name.replace("_", "-")] = value
    model = ArrayRecord({"params": Array(np.ones(2))})
    content = RecordDict({"arrays": model, "config": ConfigRecord(), "isfed": order})
    message = Message(content, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(1, 1, {"isfed-state": str(tmp_path)}, RecordDict(), {})
    handler = handler or agent_turn(
        lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, local_steps=3, batch_size=4
    )
    reply = handler(message, context)
    layout = Layout.of(model)
    return wire.unpack_upload(reply.content, layout)


def test_a_turn_asked_for_again_gives_the_same_answer(tmp_path):
    ask(tmp_path, round_index=0)
    once = ask(tmp_path, round_index=1)
    again = ask(tmp_path, round_index=1)
    assert (once.change == again.change).all()
    assert once.score == again.score
    later, fresh = ask(tmp_path, round_index=2), ask(tmp_path / "new", round_index=2)
    assert not (later.change == fresh.change).all()  # it did remember


def test_noise_is_not_drawn_again_for_the_same_turn(tmp_path):
    noisy = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, score_noise=1.0)
    told = {ask(tmp_path, round_index=1, handler=noisy).score for _ in range(3)}
    assert len(told) == 1
    other = {ask(tmp_path / str(k), round_index=1, handler=noisy).score for k in range(3)}
    assert len(other) == 3


def test_a_turn_that_was_overtaken_does_not_write_over_a_later_one(tmp_path):
    overtaken = agent_turn(
        lambda _: ask(tmp_path, round_index=5) and PROBLEM.data.agent(0), loss=PROBLEM.loss
    )
    ask(tmp_path, round_index=4, handler=overtaken)
    (path,) = tmp_path.glob("agent-0-*.npz")
    assert load_arrays(path)["round_index"] == 5


def test_data_that_changed_size_is_noticed(tmp_path):
    ask(tmp_path)
    x, y = PROBLEM.data.agent(0)
    fewer = agent_turn(lambda _: (x[:20], y[:20]), loss=PROBLEM.loss)
    with pytest.raises(ValueError, match="another number of examples than the 20 loaded"):
        ask(tmp_path, round_index=1, handler=fewer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"agent_prob": 0.0}, r"p_k=0\.0"),
        ({"agent_prob": float("nan")}, "p_k=nan"),
        ({"step_size": -1.0}, r"step_size=-1\.0"),
        ({"agent": 2}, "agent 2"),
        ({"examples_floor": 7.0}, "no order of isfed"),
        ({"example_design": "Sys"}, "no order of isfed"),
        ({"key": "zz"}, "no order of isfed"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(tmp_path, fields, message):
    with pytest.raises(wire.WireError, match=message):
        ask(tmp_path, **fields)
    assert not list(tmp_path.iterdir())


def test_an_app_of_another_strategy_is_told_so(tmp_path):
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss)
    with pytest.raises(wire.WireError, match=r"is the strategy isfed\.flower\.Strategy"):
        turn(message, Context(1, 1, {}, RecordDict(), {}))


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, batch_size=101)
    with pytest.raises(ValueError, match="batch_size=101 must be 1 to num_examples=100"):
        ask(tmp_path, handler=turn)


def test_a_node_without_a_number_says_what_is_missing():
    message = Message(RecordDict(), dst_node_id=1, message_type="query")
    with pytest.raises(ValueError, match="partition-id=None in --node-config must be"):
        tell_agent(message, Context(1, 1, {}, RecordDict(), {}))
