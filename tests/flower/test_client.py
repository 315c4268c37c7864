"""The agent's file, and what it does not believe of the cloud."""

# pyright: reportMissingImports=false
import os
from dataclasses import replace
from datetime import datetime
from errno import ENOSPC

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from isfed import PAPER, ISFedAvg
from isfed.base.atomic_files import load_arrays, save_arrays
from isfed.federation.messages import LocalOptions
from isfed.federation.safety import Privacy, ScoreRange
from isfed.flower import agent_turn, own_turn, tell_agent, wire_format
from isfed.flower.array_records import Layout

PROBLEM = PAPER.replace(num_agents=2).make(seed=1)
RULES = ISFedAvg(step_size=0.01, num_active=1).rules(2)


def ask(tmp_path, *, round_index=0, job="job", handler=None, chance: float | None = 0.5, **fields):
    """One train message to agent 0, and its reply."""
    order = wire_format.pack_request(
        wire_format.AgentRequest(
            job, round_index, 0, chance, 2**64 - 3, RULES, ScoreRange(1e-6, 1e6)
        )
    )["isfed"]
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
    return wire_format.unpack_upload(reply.content, layout)


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
    (path,) = tmp_path.glob("agent-own-*.npz")
    assert load_arrays(path)["round_index"] == 5


def test_a_turn_that_is_not_finite_is_not_remembered(tmp_path):
    ask(tmp_path)
    (path,) = tmp_path.glob("agent-own-*.npz")
    before = path.read_bytes()
    x, y = PROBLEM.data.agent(0)
    spoilt = agent_turn(lambda _: (x, np.full_like(y, np.nan)), loss=PROBLEM.loss)
    with pytest.raises(ValueError, match="of this turn is not finite"):
        ask(tmp_path, round_index=1, handler=spoilt)
    assert path.read_bytes() == before
    assert np.isfinite(ask(tmp_path, round_index=2).score)


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
        ({"agent": 2}, "agent=2"),
        ({"examples_floor": 7.0}, "no request of isfed"),
        ({"example_design": "Sys"}, "no request of isfed"),
        ({"key": "zz"}, "no request of isfed"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(tmp_path, fields, message):
    with pytest.raises(wire_format.WireError, match=message):
        ask(tmp_path, **fields)
    assert not list(tmp_path.iterdir())


def test_an_app_of_another_strategy_is_told_so(tmp_path):
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss)
    with pytest.raises(wire_format.WireError, match=r"is the strategy isfed\.flower\.Strategy"):
        turn(message, Context(1, 1, {}, RecordDict(), {}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ask": "everything"}, "ask=everything"),
        ({"also": ["data"]}, "also=.*data"),
        ({"local_prox": -1.0}, r"prox=-1\.0"),
        ({"local_momentum": 1.0}, r"momentum=1\.0"),
        ({"local_steps": 10**12}, "local steps=10{12} makes no sense"),
        ({"local_batch": 0}, "batch=0"),
        ({"scale": float("inf")}, "scale=inf"),
    ],
)
def test_steps_and_questions_that_make_no_sense_are_refused(tmp_path, fields, message):
    with pytest.raises(wire_format.WireError, match=message):
        ask(tmp_path, **fields)
    assert not list(tmp_path.iterdir())


def question(what, **options):
    """The reply to a question about a model, and how often it is asked."""
    replies = []

    def handler(message, context):
        turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, **options)
        replies.extend(turn(message, context).content for _ in range(2))
        raise KeyboardInterrupt

    return handler, replies


@pytest.mark.parametrize("what", [w for w in wire_format.ASKS if w != wire_format.SCORE])
def test_a_question_asked_again_has_the_same_answer_and_leaves_nothing(tmp_path, what):
    handler, replies = question(what)
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, handler=handler, ask=what)
    size = {wire_format.GRADIENT: 2, wire_format.WORK: 2}.get(what, 0)
    one, other = (wire_format.unpack_answer(content, what, size) for content in replies)
    assert np.array_equal(one, other)
    agent = PROBLEM.data.agent(0)
    if what == wire_format.LOSS:
        losses = PROBLEM.loss.values(np.ones(2), *agent)
        assert one == pytest.approx(losses.mean(), rel=1e-12)
    if what == wire_format.GRADIENT:
        gradient, _ = PROBLEM.loss.gradient(np.ones(2), *agent, np.ones(len(agent[1])))
        np.testing.assert_array_equal(one, gradient)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [{"privacy": Privacy(clip=1.0)}, {"score_noise": 1.0}, {"reports_per_day": 9}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize(
    "fields", [{"ask": "loss"}, {"ask": "gradient"}, {"also": ["loss"]}, {"local_momentum": 0.5}],
    ids=str,
)  # fmt: skip
def test_an_agent_that_limits_what_it_tells_answers_no_questions(tmp_path, options, fields):
    turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, **options)
    with pytest.raises(ValueError, match="this agent limits what it tells"):
        ask(tmp_path, handler=turn, **fields)


@pytest.mark.parametrize(
    "fields", [{"ask": "loss"}, {"also": ["gradient"]}, {"local_prox": 0.1}, {"scale": 2.0}],
    ids=str,
)  # fmt: skip
def test_a_loop_of_ones_own_is_not_asked_for_what_it_cannot_do(tmp_path, fields):
    with pytest.raises(ValueError, match="own_turn cannot"):
        ask(tmp_path, handler=own_turn(lambda message, context: message), chance=None, **fields)


def test_an_order_beyond_plain_steps_is_none_for_the_version_before(tmp_path):
    """It looks for the step size under its old name, and says that the versions differ."""
    plain = wire_format.AgentRequest("job", 0, 0, 0.5, 1, RULES, ScoreRange())
    assert "step-size" in wire_format.pack_request(plain)["isfed"]
    for more in (
        {"scale": 2.0},
        {"also": ("loss",)},
        {"ask": "loss"},
        {"local": LocalOptions(prox=1.0)},
    ):
        assert "step-size" not in wire_format.pack_request(replace(plain, **more))["isfed"]


def test_a_batch_larger_than_the_data_is_refused(tmp_path):
    turn = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss, batch_size=101)
    with pytest.raises(ValueError, match="exceeds its num_examples=100"):
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


def test_another_score_has_noise_of_its_own(tmp_path):
    """Called by another number an agent draws other examples; one noise would tell the ratio."""
    quiet = agent_turn(lambda _: PROBLEM.data.agent(0), loss=PROBLEM.loss)
    noise = [
        np.log(
            ask(tmp_path / "noisy", handler=noisy(), agent=k).score
            / ask(tmp_path / "quiet", handler=quiet, agent=k).score
        )
        for k in (0, 1)
    ]
    assert abs(noise[0] - noise[1]) > 1e-6


RANGES = {"wide": (1e-40, 1e40), "above": (1e6, 1e60), "below": (1e-60, 1e-6)}


def cancelled(told):
    """The score, if the noise of the three ranges is the same: a clipped score shows it."""
    noise = told["above"] / 1e6 if told["above"] > 1e6 else told["below"] / 1e-6
    return told["wide"] / noise


@pytest.mark.parametrize("scale", [0.5, 2.0, 5.0])
def test_ranges_that_the_cloud_names_do_not_cancel_the_noise(tmp_path, scale):
    """Before, three jobs with these ranges found the exact score in 40 of 40 rounds."""
    x, y = PROBLEM.data.agent(0)
    quiet = agent_turn(lambda _: (x, y), loss=PROBLEM.loss)
    loud = agent_turn(lambda _: (x, y), loss=PROBLEM.loss, score_noise=scale)
    exact = 0
    for i in range(40):
        told = {
            job: ask(
                tmp_path, job=job, round_index=i, handler=loud, score_low=low, score_high=high
            ).score
            for job, (low, high) in RANGES.items()
        }
        true = ask(tmp_path / "quiet", round_index=i, handler=quiet).score
        exact += cancelled(told) == pytest.approx(true, rel=1e-6)
    print(f"noise {scale}: the exact score in {exact} of 40 rounds")
    assert exact == 0


def test_an_agent_with_a_range_of_its_own_adds_one_noise_whatever_the_cloud_names(tmp_path):
    handler = noisy(scores=ScoreRange(1e-6, 1e6))
    told = [
        ask(tmp_path, job=str(i), handler=handler, score_high=1e6 - i, score_low=1e-6 * (1 + i))
        for i in range(40)
    ]
    assert len({upload.score for upload in told}) == 1
    for low, high in ((1e-6, 1e7), (1e-7, 1e6)):
        with pytest.raises(ValueError, match=r"reports from 1e-06 to 1e\+06 only"):
            ask(tmp_path, handler=handler, score_low=low, score_high=high)
    with pytest.raises(ValueError, match="needs a score range that begins above 0"):
        noisy(scores=ScoreRange())


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
    assert len(list(tmp_path.glob("agent-own-*.npz"))) == 16


def test_nor_one_that_calls_the_agent_by_number_after_number(tmp_path):
    for i in range(20):
        ask(tmp_path, agent=i, num_agents=100)
    assert len(list(tmp_path.glob("agent-own-*.npz"))) == 16


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


class Day(datetime):
    """A clock that shows another day."""

    today_is = 1

    @classmethod
    def now(cls, tz=None):
        return datetime(2030, 1, cls.today_is, tzinfo=tz)


def test_a_clock_that_goes_back_gives_no_second_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("isfed.flower.agent_state.datetime", Day)
    turn = noisy(reports_per_day=1)
    told = []
    for number, day in enumerate([1, 2, 1, 2, 1, 3]):
        monkeypatch.setattr(Day, "today_is", day)
        told.append(ask(tmp_path, round_index=number, handler=turn).score)
    assert told[1] == told[2] == told[3] == told[4]
    assert len(set(told)) == 3  # one report on each of three days


@pytest.mark.parametrize("content", ["", "[]", '{"2030-01-01": "x"}', '{"2030-01-01": -5}', "\0"])
def test_a_damaged_count_of_reports_is_named_and_renews_nothing(tmp_path, content):
    (tmp_path / "reports.json").write_text(content)
    with pytest.raises(ValueError, match=r"reports\.json is damaged"):
        ask(tmp_path, handler=noisy(reports_per_day=1))
    assert (tmp_path / "reports.json").read_text() == content


@pytest.mark.parametrize("content", [b"", b"short", bytes(65)])
def test_a_damaged_secret_is_not_used(tmp_path, content):
    """The noise of an empty secret could be computed by anybody."""
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(ValueError, match=f"secret is damaged: it has {len(content)} bytes"):
        ask(tmp_path, handler=noisy())


def test_a_full_disk_costs_a_turn_and_no_memory(tmp_path, monkeypatch):
    first, second = ask(tmp_path, round_index=0), None
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            ask(tmp_path, round_index=1)
    second = ask(tmp_path, round_index=1)
    assert [p.suffix for p in tmp_path.glob("*agent-*")] == [".npz"]  # nothing half written
    ask(tmp_path / "spared", round_index=0)
    spared = ask(tmp_path / "spared", round_index=1)
    assert (second.change == spared.change).all()
    assert not (first.change == second.change).all()


def test_a_file_that_lacks_an_array_is_named(tmp_path):
    ask(tmp_path)
    (path,) = tmp_path.glob("agent-own-*.npz")
    arrays = load_arrays(path)
    del arrays["nodes_after"]
    save_arrays(path, arrays)
    with pytest.raises(ValueError, match=f"{path.name} lacks nodes_after; remove it"):
        ask(tmp_path, round_index=1)


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_of_another_user_is_not_used(tmp_path, linked):
    """Somebody made it first, where everybody may: he would read the secret, as its owner."""
    folder = tmp_path / "state"
    if linked:
        (tmp_path / "mine").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "mine")
    else:
        folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345, follow_symlinks=False)
    with pytest.raises(ValueError, match="belongs to another user"):
        ask(folder, handler=noisy())
    os.chown(folder, os.getuid(), os.getgid(), follow_symlinks=False)
    ask(folder, handler=noisy())


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
