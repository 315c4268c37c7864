"""Replies that come twice or for another round, and what one agent can do to the others."""

# pyright: reportMissingImports=false
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from hostile import send
from local_grid import LocalGrid
from small_flower import AGENTS, client_app, initial, make_grid, make_strategy, params_of

from isfed import ISFedAvg, Memory
from isfed.federation.safety import Safety

EVERYBODY = ISFedAvg(step_size=0.01, num_active=AGENTS)


class Repeating(LocalGrid):
    """What is fetched of agent 0 is what `again` makes of all replies that it has sent so far."""

    def __init__(self, folder, again):
        configs = [{"partition-id": k, "isfed-state": str(folder)} for k in range(AGENTS)]
        super().__init__(client_app(), configs)
        self.again, self.sent_so_far = again, []

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        if not any(reply.metadata.src_node_id == 1000 for reply in found):
            return found
        self.sent_so_far += found
        return self.again(self.sent_so_far)


def trained(grid, **options):
    strategy = make_strategy(EVERYBODY, safety=Safety(most_refusals=0), **options)
    result = strategy.start(grid, initial(), num_rounds=3)
    return params_of(result), [m["answered"] for m in result.train_metrics_clientapp.values()]


def test_an_agent_that_replies_twice_counts_once(tmp_path):
    honest, _ = trained(make_grid(tmp_path / "honest"))
    found, counts = trained(Repeating(tmp_path / "twice", lambda sent: [sent[-1], sent[-1]]))
    assert counts == [AGENTS] * 3
    assert (found == honest).all()


def test_a_reply_to_a_round_that_is_over_is_not_taken_for_one_of_this_round(tmp_path):
    """The first reply again and again: right in round 1, and an absence after that."""
    grid = Repeating(tmp_path, lambda sent: sent[:1])
    _, counts = trained(grid, time_limit=0.2)
    assert counts == [AGENTS, AGENTS - 1, AGENTS - 1]


def test_replies_to_other_rounds_beside_the_right_one_change_nothing(tmp_path):
    honest, _ = trained(make_grid(tmp_path / "honest"))
    found, counts = trained(Repeating(tmp_path / "all", lambda sent: list(sent)))
    assert counts == [AGENTS] * 3
    assert (found == honest).all()


@pytest.mark.parametrize("direction", [[1.0, 0.0], [-0.6, 0.8]])
def test_poisoning_moves_the_model_by_as_much_as_the_length_that_is_accepted(tmp_path, direction):
    """What no check prevents: a change as long as the others', in any direction."""
    poison = np.array(direction)

    def after_a_round(name, spoil):
        grid = make_grid(tmp_path / name, lambda agent, reply: reply if agent else spoil(reply))
        strategy = make_strategy(EVERYBODY, weighting="change", time_limit=0.2)
        return params_of(strategy.start(grid, initial(), num_rounds=1))

    moved = after_a_round("poison", lambda reply: send(reply, Array(poison)))
    without = after_a_round("absent", lambda _: None)
    np.testing.assert_allclose(moved - without, poison / AGENTS, rtol=1e-12)


class Impersonating(LocalGrid):
    """Agent 0 sends what it likes in answer to agent 1's messages, before agent 1 can."""

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        ours, other = ids[0], ids[1]
        forged = send(self._replies[ours], Array(np.array([9.0, 9.0])))
        forged.metadata.__dict__["_reply_to_message_id"] = other
        self._replies[other] = forged
        return ids


def test_nobody_answers_for_another(tmp_path, caplog):
    configs = [{"partition-id": k, "isfed-state": str(tmp_path / "state")} for k in range(AGENTS)]
    grid = Impersonating(client_app(), configs)
    without = make_grid(tmp_path / "absent", lambda agent, reply: None if agent < 2 else reply)
    found, counts = trained(grid, time_limit=0.2)
    expected, _ = trained(without, time_limit=0.2)
    assert counts == [AGENTS - 2] * 3  # neither its own message nor the other's is answered
    assert (found == expected).all()
    assert "node 1000 answered what node 1001 was asked" in caplog.text


def test_a_tiny_score_buys_weight_in_the_rare_turns_and_none_on_average(tmp_path):
    """A change in one of the few turns left counts 1 / (K p_k) times, which the floor limits."""
    floor, steps = 0.2, []
    algorithm = ISFedAvg(step_size=0.01, num_active=2, agents=Memory(floor=floor))

    def spoil(agent, reply):
        change = np.array([0.0 if agent else 1.0, 0.0])
        return send(reply, Array(change), 1.0 if agent else 1e-300)

    strategy = make_strategy(
        algorithm,
        weighting="change",
        on_round=lambda report, _: steps.append(report.step if 0 in report.agents else 0.0),
    )
    rounds = 200
    strategy.start(make_grid(tmp_path, spoil), initial(), num_rounds=rounds)
    first = next(i for i, step in enumerate(steps) if step > 0.0)
    later = np.array(steps[first + 1 :])  # the cloud has the tiny score by now
    turns = later[later > 0.0]
    assert 0 < len(turns) < 0.3 * len(later)  # of 2 / 5 with a score like the others'
    np.testing.assert_allclose(turns, 1.0 / (2 * floor), rtol=1e-9)  # 1 / (L K p_k), K p_k = floor
    error = later.std() / np.sqrt(len(later))
    assert abs(later.mean() - 1.0 / AGENTS) < 4 * error


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_step_that_overflows_the_model_s_type_is_left_out(tmp_path, dtype, caplog):
    """As long as hardly anybody has been heard, nothing else limits a change of half precision."""
    largest = min(float(np.finfo(dtype).max), 1e11)
    algorithm = ISFedAvg(step_size=0.01, num_active=2)

    def spoil(agent, reply):
        return send(reply, Array(np.full(2, largest, dtype))) if agent < 2 else reply

    grid = make_grid(tmp_path, spoil)
    start = ArrayRecord({"params": Array(np.zeros(2, dtype))})
    strategy = make_strategy(algorithm, weighting="change", safety=Safety(most_refusals=0))
    result = strategy.start(grid, start, num_rounds=12)
    assert np.isfinite(params_of(result)).all()
    answered = [m["answered"] for m in result.train_metrics_clientapp.values()]
    assert answered[-1] in (1, 2)  # honest agents can still work with the model
    assert ("would overflow" in caplog.text) == (dtype == "float16")


def test_metrics_of_agents_do_not_overwrite_the_cloud_s_own_report(tmp_path):
    def boast(_, reply):
        told = {"score": 1.0, "num-examples": 1, "answered": 99, "refused_changes": 7, "loss": 2.0}
        return send(reply, Array(np.zeros(2)), metrics=MetricRecord(told))

    result = make_strategy(EVERYBODY).start(make_grid(tmp_path, boast), initial(), num_rounds=1)
    report = result.train_metrics_clientapp[1]
    assert (report["answered"], report["refused_changes"], report["loss"]) == (AGENTS, 0, 2.0)


def test_guards_send_nothing(tmp_path):
    """What the cloud asks and what agents answer has the same bytes with guards and without."""
    unlimited: dict[str, Any] = {
        "largest_ratio": np.inf,
        "most_medians": np.inf,
        "largest_change": np.inf,
    }
    without = Safety(most_refusals=0, silent_rounds=0, most_inclusion=1.0, **unlimited)
    travelled = []
    for name, safety in (("guarded", Safety()), ("bare", without)):
        replies = []
        note = lambda _, reply, kept=replies: kept.append(reply) or reply  # noqa: E731
        grid = make_grid(tmp_path / name, note)
        strategy = make_strategy(EVERYBODY, safety=safety)
        strategy._prepared(initial())
        job: Any = strategy.job
        job.name = "one"
        strategy.start(grid, initial(), num_rounds=3)
        travelled.append([contents(message) for message in (*grid.sent, *replies)])
    assert len(travelled[0]) == 2 * 3 * AGENTS
    assert travelled[0] == travelled[1]


def contents(message):
    """All that a message carries."""
    records = message.content.items()
    return {
        name: {key: getattr(value, "data", value) for key, value in record.items()}
        for name, record in records
    }
