"""The strategy and the client app together, on a grid without a network."""

# pyright: reportMissingImports=false
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from small_flower import (
    AGENTS,
    ALGORITHM,
    NAMES,
    in_process,
    initial,
    make_grid,
    make_strategy,
    params_of,
)

from isfed import (
    FedAdam,
    HierFAVG,
    ISFedAvg,
    Memory,
    Running,
    Scheduled,
    Served,
    Uniform,
    WithReplacement,
)
from isfed.base import atomic_files
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Safety
from isfed.flower import wire_format


@pytest.mark.parametrize(
    "algorithm",
    [
        ALGORITHM,
        ISFedAvg(step_size=0.01, num_active=2, agents=Running(), examples=Running()),
        ISFedAvg(step_size=0.01, num_active=5, agents=Uniform(), examples=Memory()),
        ISFedAvg(step_size=0.01, num_active=4, agent_design=WithReplacement()),
    ],
    ids=lambda a: f"{a.name} {a.agent_design}",
)
@pytest.mark.parametrize("names", [NAMES, None], ids=["by name", "asked"])
def test_equals_the_objects_bit_for_bit(tmp_path, algorithm, names):
    strategy = make_strategy(algorithm, names=names)
    result = strategy.start(make_grid(tmp_path), initial(), num_rounds=12)
    assert (params_of(result) == in_process(12, algorithm)).all()


def test_flowers_own_loop_gives_the_same(tmp_path):
    """configure_train and aggregate_train work without our `start`."""
    strategy, grid, arrays = make_strategy(), make_grid(tmp_path), initial()
    for number in range(1, 7):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert arrays is not None
    assert (arrays["params"].numpy() == in_process(6)).all()


def test_only_a_change_and_a_score_travel_up(tmp_path):
    replies = []
    grid = make_grid(tmp_path, lambda agent, reply: replies.append(reply) or reply)
    make_strategy().start(grid, initial(), num_rounds=2)
    for reply in replies:
        assert {name: list(record) for name, record in reply.content.items()} == {
            "change": ["params"],
            "metrics": ["score"],
            "isfed": ["digest"],  # of the change
        }


def test_messages_expire_with_the_round(tmp_path):
    grid = make_grid(tmp_path)
    make_strategy(time_limit=7.0).start(grid, initial(), num_rounds=1)
    assert {message.metadata.ttl for message in grid.sent} == {7.0}


def test_a_killed_server_continues_with_the_same_draws(tmp_path):
    class Killed(BaseException):
        pass

    def kill(report, _):
        if report.round_index == 3:
            raise Killed

    checkpoint = tmp_path / "cloud.npz"
    with pytest.raises(Killed):
        make_strategy(checkpoint=checkpoint, on_round=kill).start(
            make_grid(tmp_path), initial(), num_rounds=9
        )
    result = make_strategy(checkpoint=checkpoint).start(
        make_grid(tmp_path), initial(), num_rounds=9
    )
    assert (params_of(result) == in_process(9)).all()
    assert sorted(result.train_metrics_clientapp) == [5, 6, 7, 8, 9]
    again = make_strategy(checkpoint=checkpoint).start(make_grid(tmp_path), initial(), num_rounds=9)
    assert (params_of(again) == in_process(9)).all()
    assert not again.train_metrics_clientapp


@pytest.mark.parametrize("absences", list(Absences))
def test_a_job_of_the_version_before_goes_on(tmp_path, absences):
    """Its checkpoint had no format, and the responses of the agents once for all uses."""
    safety = Safety(absences=absences, most_inclusion=1.0)  # as in process
    checkpoint = tmp_path / "cloud.npz"
    strategy = make_strategy(checkpoint=checkpoint, safety=safety)
    strategy.start(make_grid(tmp_path), initial(), num_rounds=4)
    assert strategy._lock is not None
    strategy._lock.close()
    new = atomic_files.load_arrays(checkpoint)
    old = {name: new[name] for name in ("fingerprint", "job", "round_index")}
    old |= {n.removeprefix("records."): v for n, v in new.items() if n.startswith("records.")}
    old |= {"params": new["method.params"], "nodes": new["method.sampler.nodes"]}
    atomic_files.save_arrays(checkpoint, old)
    strategy = make_strategy(checkpoint=checkpoint, safety=safety)
    result = strategy.start(make_grid(tmp_path), initial(), num_rounds=9)
    assert (params_of(result) == in_process(9)).all()
    again = atomic_files.load_arrays(checkpoint)
    assert again["format"] == 2
    if absences is Absences.ADJUSTED:
        kept = again["method.estimator.responses"]
        assert (kept[:, 0] == again["records.turns"]).all()
        assert kept[:, 0].sum() == 9 * 3


def test_a_job_goes_on_with_a_tighter_safety_and_the_log_says_so(tmp_path, caplog):
    checkpoint = tmp_path / "cloud.npz"
    strategy = make_strategy(checkpoint=checkpoint)
    strategy.start(make_grid(tmp_path), initial(), num_rounds=2)
    strategy._lock.close()  # type: ignore[union-attr]
    tighter = Safety(most_inclusion=0.9, largest_ratio=50.0)
    strategy = make_strategy(checkpoint=checkpoint, safety=tighter)
    result = strategy.start(make_grid(tmp_path), initial(), num_rounds=4)
    assert sorted(result.train_metrics_clientapp) == [3, 4]
    assert "tighter Safety: largest_ratio from 1000 to 50" in caplog.text
    assert "most_inclusion from 1 to 0.9" in caplog.text
    metrics = result.train_metrics_clientapp[4]  # progress, answers and refusals, as metrics
    wanted = {"drawn", "answered", "late", "refused_changes", "refused_scores", "shortened", "step"}
    assert wanted <= set(metrics)


def test_two_runs_do_not_share_a_checkpoint(tmp_path):
    checkpoint = tmp_path / "cloud.npz"
    first = make_strategy(checkpoint=checkpoint)
    first.start(make_grid(tmp_path), initial(), num_rounds=1)
    with pytest.raises(ValueError, match="another run is using"):
        make_strategy(checkpoint=checkpoint).start(make_grid(tmp_path), initial(), num_rounds=2)


@pytest.mark.parametrize("lost_round", [1, 4])
def test_a_server_killed_within_a_round_asks_again_and_gets_the_same(tmp_path, lost_round):
    class Killed(BaseException):
        pass

    answers = {"count": 0}

    def kill(_, reply):
        answers["count"] += 1
        if answers["count"] == 3 * (lost_round - 1) + 2:  # two of three agents have worked
            raise Killed
        return reply

    checkpoint = tmp_path / "cloud.npz"
    with pytest.raises(Killed):
        make_strategy(checkpoint=checkpoint).start(
            make_grid(tmp_path, kill), initial(), num_rounds=6
        )
    result = make_strategy(checkpoint=checkpoint).start(
        make_grid(tmp_path), initial(), num_rounds=6
    )
    assert (params_of(result) == in_process(6)).all()


def test_a_new_job_does_not_inherit_the_scores_of_the_last(tmp_path):
    grid = make_grid(tmp_path)
    for _ in range(2):
        result = make_strategy().start(grid, initial(), num_rounds=5)
        assert (params_of(result) == in_process(5)).all()


def reply_with(reply, change, score):
    record = ArrayRecord({"params": Array(np.asarray(change))})
    content = RecordDict(
        {
            "change": record,
            "metrics": MetricRecord({"score": score}),
            "isfed": ConfigRecord({"digest": wire_format.digest(record)}),
        }
    )
    reply.__dict__["_content"] = content
    return reply


HOSTILE = {
    "nan model": (lambda r: reply_with(r, np.full(2, math.nan), 1.0), "refused_changes"),
    "wrong shape": (lambda r: reply_with(r, np.zeros(3), 1.0), "refused_changes"),
    "wrong type": (lambda r: reply_with(r, np.zeros(2, np.int64), 1.0), "refused_changes"),
    "no model": (lambda r: r.__dict__.update(_content=RecordDict()) or r, "refused_changes"),
    "negative score": (lambda r: reply_with(r, np.zeros(2), -1.0), "refused_scores"),
    "infinite score": (lambda r: reply_with(r, np.zeros(2), math.inf), "refused_scores"),
    "enormous score": (lambda r: reply_with(r, np.zeros(2), 1e200), "refused_scores"),
    "nan score": (lambda r: reply_with(r, np.zeros(2), math.nan), "refused_scores"),
    "list of scores": (lambda r: reply_with(r, np.zeros(2), [1.0, 2.0]), "refused_scores"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_replies_are_refused_and_counted(tmp_path, kind):
    spoil, counter = HOSTILE[kind]
    grid = make_grid(tmp_path, lambda agent, reply: spoil(reply) if agent == 0 else reply)
    algorithm = ISFedAvg(step_size=0.01, num_active=AGENTS)  # agent 0 is in every round
    result = make_strategy(algorithm).start(grid, initial(), num_rounds=3)
    for metrics in result.train_metrics_clientapp.values():
        assert metrics[counter] == 1
        assert metrics["answered"] == (4 if counter == "refused_changes" else 5)
    assert np.isfinite(params_of(result)).all()


@pytest.mark.parametrize("absences", list(Absences))
def test_absent_agents_do_not_hold_up_a_round(tmp_path, absences):
    def silent(agent, reply):
        return None if agent == 0 else reply

    grid = make_grid(tmp_path, silent)
    grid.offline.add(1001)
    algorithm = ISFedAvg(step_size=0.01, num_active=AGENTS)
    strategy = make_strategy(algorithm, time_limit=0.3, safety=Safety(absences=absences))
    result = strategy.start(grid, initial(), num_rounds=2)
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["drawn"], metrics["answered"]) == (5, 3)
    assert strategy.job is not None
    assert strategy.job.agents.responses.rates().tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_a_client_that_raises_is_absent_and_the_reason_is_logged(tmp_path, caplog):
    grid = make_grid(tmp_path)
    grid.contexts[1000].node_config["partition-id"] = 99  # it cannot load its data
    algorithm = ISFedAvg(step_size=0.01, num_active=AGENTS)
    result = make_strategy(algorithm).start(grid, initial(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["answered"] == 4
    assert "agent 0 failed: error 2" in caplog.text


def test_without_metrics_a_round_is_one_line_under_its_number(tmp_path, caplog):
    caplog.set_level("INFO")
    make_strategy().start(make_grid(tmp_path), initial(), num_rounds=2)
    assert "[ROUND 2/2]" in caplog.messages
    assert "round 2: 3 of 3 answered, length of the step " in caplog.text
    assert "MetricRecord" not in caplog.text


def test_nobody_there_leaves_the_model_and_ends(tmp_path, caplog):
    grid = make_grid(tmp_path)
    grid.offline.update(grid.contexts)
    result = make_strategy().start(grid, initial(), num_rounds=2)
    assert (params_of(result) == 0.0).all()
    assert "nobody: the model stays as it is" in caplog.text


def test_a_node_that_comes_back_under_another_id_is_the_same_agent(tmp_path):
    grid = make_grid(tmp_path)
    strategy = make_strategy(names=None)
    strategy.start(grid, initial(), num_rounds=4)
    grid.contexts[2000] = grid.contexts.pop(1002)
    result = strategy.start(grid, initial(), num_rounds=8)
    assert (params_of(result) == in_process(8)).all()


def test_a_second_claim_to_a_number_is_not_believed_while_the_first_is_there(tmp_path):
    grid = make_grid(tmp_path)
    strategy = make_strategy(names=None)
    strategy.start(grid, initial(), num_rounds=2)
    grid.contexts[3000] = grid.contexts[1001]
    strategy.start(grid, initial(), num_rounds=6)
    asked = {m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train"}
    assert 3000 not in asked


def test_a_model_of_several_arrays_keeps_its_layout(tmp_path):
    first = ArrayRecord({"slope": Array(np.zeros((1, 1))), "rest": Array(np.zeros(1))})
    result = make_strategy().start(make_grid(tmp_path), first, num_rounds=5)
    assert [(n, tuple(a.shape)) for n, a in result.arrays.items()] == [
        ("slope", (1, 1)),
        ("rest", (1,)),
    ]
    flat = np.concatenate([a.numpy().ravel() for a in result.arrays.values()])
    assert (flat == in_process(5)).all()


def test_evaluation_of_an_existing_app_still_runs(tmp_path):
    grid = make_grid(tmp_path)

    @grid.app.evaluate()
    def evaluate(message: Message, context):
        metrics = MetricRecord({"loss": 2.0, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    strategy = make_strategy(fraction_evaluate=1.0)
    result = strategy.start(
        grid, initial(), num_rounds=2, evaluate_fn=lambda n, _: MetricRecord({"round": n})
    )
    assert result.evaluate_metrics_clientapp[2]["loss"] == 2.0
    assert [m["round"] for m in result.evaluate_metrics_serverapp.values()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0.0}, r"time_limit=0\.0 must be"),
        ({"names": ["a", "a", "b", "c", "d"]}, "names must be 5 different names"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(**options)


@pytest.mark.parametrize(
    "around",
    [Scheduled(HierFAVG(step_size=0.1), lambda i: 0.1), Served(HierFAVG(step_size=0.1), FedAdam())],
)
def test_a_wrapper_around_rounds_of_their_own_is_refused_with_what_to_do(around):
    with pytest.raises(ValueError, match=r"in simulations only: .* give the parts to Fed"):
        make_strategy(around)
