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


def noisy(**options):
    return agent_turn(
        lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, score_noise=1.0, **options
    )


def test_noise_does_not_average_out_over_jobs(tmp_path):
    """Asked for the same round under another name, the agent adds the same noise."""
    quiet = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss)
    true = ask(tmp_path / "quiet", handler=quiet).score
    told = [ask(tmp_path / "noisy", job=f"job {i}", handler=noisy()).score for i in range(40)]
    assert len(set(told)) == 1
    assert told[0] != true
    others = [ask(tmp_path / str(i), handler=noisy()).score for i in range(40)]
    assert len(set(others)) == 40  # another agent has another secret
    errors = np.log(np.array(others) / true)
    assert errors.std() == pytest.approx(np.sqrt(2), abs=4 * np.sqrt(2.5 / 40))  # Laplace(1)


def test_the_cloud_cannot_change_the_noise_by_what_it_calls_the_agent(tmp_path):
    quiet = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss)
    noise = [
        np.log(
            ask(tmp_path / "noisy", handler=noisy(), agent=k).score
            / ask(tmp_path / "quiet", handler=quiet, agent=k).score
        )
        for k in (0, 1)  # who draws other examples, and so has another score
    ]
    assert noise[0] == pytest.approx(noise[1], rel=1e-12)


def test_two_jobs_do_not_reset_each_other(tmp_path):
    alone = [ask(tmp_path / "alone", round_index=i) for i in range(4)]
    for i in range(4):
        mixed = ask(tmp_path / "mixed", round_index=i, job="job")
        ask(tmp_path / "mixed", round_index=i, job="another")
        assert (mixed.change == alone[i].change).all()
        assert mixed.score == alone[i].score


def test_a_cloud_that_begins_job_after_job_does_not_fill_the_disk(tmp_path):
    for i in range(20):
        ask(tmp_path, job=f"job {i}")
    assert len(list(tmp_path.glob("agent-0-*.npz"))) == 16


def test_after_its_budget_an_agent_tells_nothing_new(tmp_path):
    turn = noisy(reports_per_day=3)
    told = [ask(tmp_path, round_index=i, handler=turn).score for i in range(6)]
    assert len(set(told)) == 3
    assert told[2:] == [told[2]] * 4
    stranger = ask(tmp_path, round_index=9, job="another", handler=turn).score
    assert stranger == 1.0  # the middle of 1e-6 to 1e6
    again = ask(tmp_path, round_index=5, handler=turn).score
    assert again == told[5]


def test_the_budget_begins_anew_every_day(tmp_path, monkeypatch):
    turn = noisy(reports_per_day=1)
    told = [ask(tmp_path, round_index=i, handler=turn).score for i in range(2)]
    content = (tmp_path / "reports.json").read_text()
    (tmp_path / "reports.json").write_text(content.replace("20", "19", 1))  # a century ago
    told.append(ask(tmp_path, round_index=2, handler=turn).score)
    assert told[0] == told[1] != told[2]


def test_what_an_agent_keeps_only_its_owner_can_read(tmp_path):
    folder = tmp_path / "new" / "state"
    ask(folder, handler=noisy(reports_per_day=5))
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        if not path.name.endswith(".lock"):
            assert path.stat().st_mode & 0o777 == 0o600, path.name
    folder.chmod(0o755)
    ask(folder, round_index=1)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_others_is_not_taken_over(tmp_path):
    (tmp_path / "diary.txt").write_text("")
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="holds more than an agent's files"):
        ask(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_job_cannot_name_a_path(tmp_path):
    ask(tmp_path / "state", job="../../x\0y")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
