"""No reply of one agent ends a run, or counts: the others train as if it were absent."""

# pyright: reportMissingImports=false
import logging
from pathlib import Path

import hostile
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from isfed import PAPER, ISFedAvg
from isfed.federation.safety import Safety
from isfed.flower import Strategy, agent_turn

AGENTS = 5
PROBLEM = PAPER.replace(num_agents=AGENTS).make(seed=11)
EVERYBODY = ISFedAvg(step_size=0.01, num_active=AGENTS)  # agent 0 is in every round


def train(tmp_path, spoil, *, algorithm=EVERYBODY, rounds=2, **options):
    """Some rounds in which agent 0's replies are spoiled."""
    app = ClientApp()

    @app.train()
    def _(message, context):
        agent = context.node_config["partition-id"]
        turn = agent_turn(
            lambda _: PROBLEM.data.agent(agent),
            loss=PROBLEM.loss,
            local_steps=int(PROBLEM.local_steps[agent]),
            batch_size=int(PROBLEM.batch_size[agent]),
        )
        return turn(message, context)

    configs = [{"partition-id": k, "isfed-state": str(tmp_path / "state")} for k in range(AGENTS)]
    grid = LocalGrid(app, configs, lambda agent, reply: spoil(reply) if agent == 0 else reply)
    strategy = Strategy(
        algorithm,
        num_agents=AGENTS,
        seed=11,
        names=[f"agent{k}" for k in range(AGENTS)],
        time_limit=60.0,
        join_limit=0.0,
        fraction_evaluate=0.0,
        **options,
    )
    initial = ArrayRecord({"params": Array(np.zeros(PROBLEM.num_params))})
    return strategy.start(grid, initial, num_rounds=rounds), strategy


_ABSENT = {}


@pytest.fixture
def without(tmp_path_factory):
    """The model when agent 0 is absent."""
    if "params" not in _ABSENT:
        result, _ = train(tmp_path_factory.mktemp("absent"), lambda r: hostile.error(r, "absent"))
        _ABSENT["params"] = result.arrays["params"].numpy()
    return _ABSENT["params"]


@pytest.mark.parametrize("kind", hostile.UNREADABLE)
def test_what_cannot_be_a_change_is_refused_and_counted(tmp_path, kind, without, caplog):
    result, _ = train(tmp_path, hostile.UNREADABLE[kind])
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["answered"], metrics["refused_changes"]) == (4, 1)
    assert (result.arrays["params"].numpy() == without).all()
    for record in caplog.records:
        text = record.getMessage()
        assert len(text) < 1000
        assert text.isprintable() or "\t" in text  # Flower's own summary has tabs


@pytest.mark.parametrize("kind", hostile.FAILURES)
def test_an_error_is_an_absence_and_its_reason_is_cut(tmp_path, kind, without, caplog):
    result, _ = train(tmp_path, hostile.FAILURES[kind])
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["answered"], metrics["refused_changes"]) == (4, 0)
    assert (result.arrays["params"].numpy() == without).all()
    assert max(len(record.getMessage()) for record in caplog.records) < 1000
    assert not any(r.getMessage().startswith("round 9") for r in caplog.records)


@pytest.mark.parametrize("kind", hostile.SCORES)
def test_an_absurd_score_is_refused_and_its_change_kept(tmp_path, kind):
    result, _ = train(tmp_path, hostile.SCORES[kind])
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["answered"], metrics["refused_scores"]) == (5, 1)


def test_a_reply_that_flower_cannot_decode_takes_no_other_with_it(tmp_path, without, monkeypatch):
    """Flower hands out a reply once: one that raises must not lose those fetched with it."""
    honest = LocalGrid.pull_messages

    def pull(self, message_ids):
        found = honest(self, message_ids)
        if any(message.metadata.src_node_id == 1000 for message in found):
            raise TypeError("Invalid arguments for Array")
        return found

    monkeypatch.setattr(LocalGrid, "pull_messages", pull)
    result, _ = train(tmp_path, lambda reply: reply)
    for metrics in result.train_metrics_clientapp.values():
        assert (metrics["answered"], metrics["refused_changes"]) == (4, 1)
    assert (result.arrays["params"].numpy() == without).all()


def test_who_is_refused_again_and_again_is_left_out_and_reported(tmp_path, caplog):
    asked = []

    def spoil(reply):
        asked.append(reply)
        return hostile.UNREADABLE["values that are not numbers"](reply)

    with caplog.at_level(logging.INFO):
        result, strategy = train(tmp_path, spoil, rounds=6)
    assert len(asked) == 3
    assert "agent 0 is left out from now on: 3 of its models in a row were refused" in caplog.text
    assert [m["excluded"] for m in result.train_metrics_clientapp.values()] == [0, 0, 1, 1, 1, 1]
    assert "left out: 0; give readmit=[...]" in strategy.report()[-1]


def test_when_everybody_is_left_out_the_run_ends_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("isfed.flower.agents.wire_format.unpack_upload", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match=r"nobody's answer .* in 3 rounds.*Likely causes"):
        train(tmp_path / "causes", lambda reply: reply, rounds=4)
    patient = Safety(silent_rounds=0)
    with pytest.raises(ValueError, match="every agent was left out"):
        train(tmp_path / "patient", lambda reply: reply, rounds=4, safety=patient)


def test_an_agent_that_was_mended_can_be_taken_back(tmp_path):
    checkpoint = tmp_path / "cloud.npz"
    train(tmp_path, hostile.UNREADABLE["infinite values"], rounds=3, checkpoint=checkpoint)
    still, first = train(tmp_path, lambda reply: reply, rounds=4, checkpoint=checkpoint)
    assert still.train_metrics_clientapp[4]["answered"] == 4
    assert first._lock is not None
    first._lock.close()
    mended, _ = train(tmp_path, lambda reply: reply, rounds=5, checkpoint=checkpoint, readmit=[0])
    assert mended.train_metrics_clientapp[5]["answered"] == 5


def test_the_table_of_attacks_in_the_documentation_is_what_is_tried():
    page = (Path(__file__).parents[2] / "docs" / "appendix" / "federation.md").read_text()
    assert hostile.attack_table() in page
    assert len({*hostile.UNREADABLE, *hostile.FAILURES, *hostile.SCORES, *hostile.ELSEWHERE}) >= 70
    for _, place in hostile.ELSEWHERE.values():
        assert (Path(__file__).parents[2] / place).exists()


def test_a_run_in_which_nobody_is_heard_ends_with_the_likely_causes(tmp_path, monkeypatch):
    """Who is only silent is never left out, so that the run would end as if all were well."""
    monkeypatch.setattr("isfed.flower.agents.wire_format.unpack_upload", lambda *_: 1 / 0)
    checkpoint, patient = tmp_path / "cloud.npz", Safety(most_refusals=0)
    with pytest.raises(RuntimeError, match=r"in 3 rounds in a row.*own_turn; keys or versions"):
        train(tmp_path, lambda reply: reply, rounds=9, safety=patient, checkpoint=checkpoint)
    assert checkpoint.exists()
    for_ever = Safety(most_refusals=0, silent_rounds=0)
    result, _ = train(tmp_path, lambda reply: reply, rounds=5, safety=for_ever)
    assert len(result.train_metrics_clientapp) == 5
