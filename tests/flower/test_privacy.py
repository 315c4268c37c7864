"""Flower's differential privacy takes a change for a model: it is recognised and refused."""

# pyright: reportMissingImports=false
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flowers
from local_grid import LocalGrid

from isfed import PAPER, ISFedAvg
from isfed.federation.safety import Privacy, Safety
from isfed.flower import Strategy, agent_turn

AGENTS = 3
PROBLEM = PAPER.replace(num_agents=AGENTS).make(seed=2)


def make_grid(tmp_path, *, mods=(), **options):
    app = ClientApp()

    @app.train(mods=list(mods))
    def _(message, context):
        agent = context.node_config["partition-id"]
        turn = agent_turn(lambda _: PROBLEM.data.agent(agent), loss=PROBLEM.loss, **options)
        return turn(message, context)

    configs = [{"partition-id": k, "isfed-state": str(tmp_path / str(k))} for k in range(AGENTS)]
    return LocalGrid(app, configs)


def make_strategy(**options):
    return Strategy(
        ISFedAvg(step_size=0.01, num_active=AGENTS),
        num_agents=AGENTS,
        names=[f"agent{k}" for k in range(AGENTS)],
        time_limit=60.0,
        join_limit=0.0,
        fraction_evaluate=0.0,
        **options,
    )


def initial():
    return ArrayRecord({"params": Array(np.ones(PROBLEM.num_params))})


@pytest.mark.parametrize(
    "mod",
    [LocalDpMod(1.0, 1.0, 1.0, 1e-5), fixedclipping_mod, adaptiveclipping_mod],
    ids=["local", "fixed", "adaptive"],
)
def test_a_mod_of_flowers_cannot_reach_the_model(tmp_path, mod, caplog):
    strategy = make_strategy(safety=Safety(most_refusals=0))
    result = strategy.start(make_grid(tmp_path, mods=[mod]), initial(), num_rounds=2)
    assert [m["answered"] for m in result.train_metrics_clientapp.values()] == [0, 0]
    assert (result.arrays["params"].numpy() == 1.0).all()
    assert "takes it for a model" in caplog.text
    assert "use isfed's Privacy" in caplog.text


WRAPPERS = {
    "server, fixed": lambda s: flowers.DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 3),
    "client, fixed": lambda s: flowers.DifferentialPrivacyClientSideFixedClipping(s, 1.0, 1.0, 3),
    "server, adaptive": lambda s: flowers.DifferentialPrivacyServerSideAdaptiveClipping(
        s, 1.0, 3, clipped_count_stddev=10.0
    ),
    "client, adaptive": lambda s: flowers.DifferentialPrivacyClientSideAdaptiveClipping(
        s, 1.0, 3, clipped_count_stddev=10.0
    ),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_of_flowers_is_refused_with_a_sentence(tmp_path, kind):
    inner = make_strategy()
    outer, grid = WRAPPERS[kind](inner), make_grid(tmp_path)

    def two_rounds(arrays):
        for number in (1, 2):
            messages = list(outer.configure_train(number, arrays, ConfigRecord(), grid))
            found, _ = outer.aggregate_train(number, grid.send_and_receive(messages))
            arrays = found or arrays

    with pytest.raises(ValueError, match=r"takes a change for a model.*Safety\(privacy=Privacy"):
        two_rounds(initial())
    assert inner.job is not None
    assert np.linalg.norm(inner.job.params - 1.0) < 1.0


def test_the_clouds_noise_reaches_the_model(tmp_path):
    """Steps clipped to nothing: what is left is noise of the stated size."""
    privacy = Privacy(clip=1e-9, noise=1e9)
    strategy = make_strategy(safety=Safety(privacy=privacy))
    steps = []
    strategy.on_round = lambda report, params: steps.append(params)
    strategy.start(make_grid(tmp_path), initial(), num_rounds=30)
    moved = np.diff(steps, axis=0)
    expected = 1.0 / 3  # noise * clip / L
    error = expected / math.sqrt(2 * moved.size)
    assert moved.std() == pytest.approx(expected, abs=4 * error)


def test_an_agents_own_noise_is_the_same_when_asked_again(tmp_path):
    privacy = Privacy(clip=1.0, noise=1.0)
    changes = []
    for _ in range(2):  # the same job from its beginning: the cloud was killed
        strategy = make_strategy(seed=1)
        grid = make_grid(tmp_path, privacy=privacy)
        grid.spoil = lambda _, reply: changes.append(reply.content["change"]["params"]) or reply
        strategy._prepared(initial())
        assert strategy.job is not None
        strategy.job.name = "one"
        strategy.start(grid, initial(), num_rounds=1)
    first, again = changes[:AGENTS], changes[AGENTS:]
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(first, again, strict=True))
    assert len({a.data for a in first}) == AGENTS


def test_an_agent_whose_budget_is_spent_does_not_work(tmp_path):
    grid = make_grid(tmp_path, privacy=Privacy(clip=1.0, noise=1.0), reports_per_day=2)
    result = make_strategy().start(grid, initial(), num_rounds=4)
    assert [m["answered"] for m in result.train_metrics_clientapp.values()] == [3, 3, 0, 0]
