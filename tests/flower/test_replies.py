"""Replies that come twice or for another round, and what one agent can do to the others."""

# pyright: reportMissingImports=false
import numpy as np
import pytest
from flwr.app import Array, MetricRecord
from hostile import send
from local_grid import LocalGrid
from small_flower import AGENTS, client_app, initial, make_grid, make_strategy, params_of

from isfed import ISFedAvg
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


def test_metrics_of_agents_do_not_overwrite_the_cloud_s_own_report(tmp_path):
    def boast(_, reply):
        told = {"score": 1.0, "num-examples": 1, "answered": 99, "refused_changes": 7, "loss": 2.0}
        return send(reply, Array(np.zeros(2)), metrics=MetricRecord(told))

    result = make_strategy(EVERYBODY).start(make_grid(tmp_path, boast), initial(), num_rounds=1)
    report = result.train_metrics_clientapp[1]
    assert (report["answered"], report["refused_changes"], report["loss"]) == (AGENTS, 0, 2.0)
