"""Evaluation with replies that are malformed, or that claim too much."""

# pyright: reportMissingImports=false
import math

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from small_flower import initial, make_grid, make_strategy

from isfed import ISFedAvg
from isfed.flower import Strategy
from isfed.flower.evaluation import log_metrics

HONEST = [{"loss": 1.0, "num-examples": 10}, {"loss": 2.0, "num-examples": 30}]


def reply(*records, error=None):
    message = Message(RecordDict(), dst_node_id=1, message_type="evaluate")
    message.metadata.__dict__["_message_id"] = "m"
    if error is not None:
        return Message(Error(2, error), reply_to=message)
    return Message(RecordDict({f"r{i}": r for i, r in enumerate(records)}), reply_to=message)


def evaluate(*more, **options):
    strategy = Strategy(ISFedAvg(step_size=0.1, num_active=1), num_agents=3, **options)
    replies = [reply(MetricRecord(metrics)) for metrics in HONEST]
    return strategy.aggregate_evaluate(1, [*replies, *more])


def nothing():
    message = reply()
    message.__dict__.update(_content=None, _error=None)
    return message


BAD = {
    "no record": lambda: reply(),
    "two records": lambda: reply(MetricRecord(HONEST[0]), MetricRecord(HONEST[0])),
    "a model": lambda: reply(ArrayRecord()),
    "no weight": lambda: reply(MetricRecord({"loss": 1.0})),
    "a list as weight": lambda: reply(MetricRecord({"loss": 1.0, "num-examples": [1, 2]})),
    "a negative weight": lambda: reply(MetricRecord({"loss": 1.0, "num-examples": -5})),
    "no examples": lambda: reply(MetricRecord({"loss": 1.0, "num-examples": 0})),
    "an infinite weight": lambda: reply(MetricRecord({"loss": 1.0, "num-examples": math.inf})),
    "not a number": lambda: reply(MetricRecord({"loss": math.nan, "num-examples": 10})),
    "infinite": lambda: reply(MetricRecord({"loss": [math.inf], "num-examples": 10})),
    "other names": lambda: reply(MetricRecord({"accuracy": 1.0, "num-examples": 10})),
    "a list for a number": lambda: reply(MetricRecord({"loss": [1.0, 2.0], "num-examples": 10})),
    "a million numbers": lambda: reply(
        MetricRecord({"loss": [0.5] * 1_000_000, "num-examples": 10})
    ),
    "twenty thousand names": lambda: reply(
        MetricRecord({**{f"m{i}": 1.0 for i in range(20_000)}, "num-examples": 10})
    ),
    "an error": lambda: reply(error="x" * 10**6),
    "nothing": nothing,
}


@pytest.mark.parametrize("kind", BAD)
def test_one_malformed_reply_leaves_the_others_as_they_are(kind, caplog):
    found = evaluate(BAD[kind]())
    assert found is not None
    assert found["loss"] == pytest.approx((1.0 * 10 + 2.0 * 30) / 40)
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_many_metrics_make_one_short_line(caplog):
    caplog.set_level("INFO")
    log_metrics("metrics: %s", {f"name {i}": [0.5] for i in range(5000)})
    log_metrics("metrics: %s", {})
    log_metrics("metrics: %s", None)
    (line,) = caplog.messages
    assert line.startswith("metrics: {'name 0': [0.5], ")
    assert len(line) < 2100


def test_nobody_owns_the_mean_by_claiming_examples(caplog):
    liar = reply(MetricRecord({"loss": 0.0, "num-examples": 1e300}))
    found = evaluate(*(reply(MetricRecord(HONEST[1])) for _ in range(40)), liar)
    assert found is not None
    weights = [10, *[30] * 41, 300]  # the liar counts as ten median agents
    assert found["loss"] == pytest.approx((10 * 1.0 + 41 * 30 * 2.0) / sum(weights))
    assert found["loss-median"] == 2.0
    assert "1 agents say num-examples above 10.0 times the median" in caplog.text


def test_not_even_of_two():
    strategy = Strategy(ISFedAvg(step_size=0.1, num_active=1), num_agents=2)
    liar = reply(MetricRecord({"loss": 0.0, "num-examples": 1e300}))
    found = strategy.aggregate_evaluate(1, [reply(MetricRecord(HONEST[1])), liar])
    assert found is not None
    assert found["loss"] == pytest.approx(2.0 / 11)


def test_a_function_of_ones_own_gets_the_good_replies_and_may_fail(caplog):
    seen = []

    def mine(records, key):
        seen.append(len(records))
        raise KeyError(key)

    assert evaluate(BAD["no weight"](), evaluate_metrics_aggr_fn=mine) is None
    assert seen == [2]
    assert "evaluation of round 1 left out: KeyError" in caplog.text


def test_no_good_reply_means_no_evaluation():
    strategy = Strategy(ISFedAvg(step_size=0.1, num_active=1), num_agents=3)
    assert strategy.aggregate_evaluate(1, [BAD["no record"]()]) is None


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nround 9: all well", "x" * 101])
def test_names_that_would_spoil_a_log_are_left_out_even_if_all_agents_use_them(name):
    strategy = Strategy(ISFedAvg(step_size=0.1, num_active=1), num_agents=3)
    assert (
        strategy.aggregate_evaluate(1, [reply(MetricRecord({name: 1.0, "num-examples": 1}))])
        is None
    )


def messages(tmp_path, **options):
    """What is sent for an evaluation by a strategy with names, and its grid."""
    grid = make_grid(tmp_path)
    strategy = make_strategy(**{"fraction_evaluate": 1.0, **options})
    return strategy, grid, lambda: strategy.configure_evaluate(1, initial(), ConfigRecord(), grid)


def test_more_nodes_asked_for_than_there_are_means_no_evaluation_and_no_waiting(tmp_path):
    _, grid, ask = messages(tmp_path, min_evaluate_nodes=4, fraction_evaluate=0.1)
    assert len(ask()) == 4
    grid.offline.update([1001, 1002])
    assert ask() == []  # Flower would wait for ever


def test_strangers_and_agents_that_were_left_out_are_not_asked(tmp_path):
    strategy, grid, ask = messages(tmp_path)
    grid.contexts[1777] = grid.contexts[1000]  # online, and none of the names
    assert sorted(m.metadata.dst_node_id for m in ask()) == [1000, 1001, 1002, 1003, 1004]
    assert strategy.job is not None
    strategy.job.agents.records.excluded[3] = True
    sent = ask()
    assert sorted(m.metadata.dst_node_id for m in sent) == [1000, 1001, 1002, 1004]
    assert {m.metadata.ttl for m in sent} == {strategy.time_limit}
