"""What is charged: by the letter of the accounting rules, for every question and every turn."""

import numpy as np
import pytest
from small_federations import regression

from isfed import (
    FOLB,
    SCAFFOLD,
    AdaptiveTau,
    AgnosticFL,
    Clock,
    Correction,
    FedAvg,
    FedCS,
    HybridFL,
    ISFedAvg,
    LocalSGD,
    Memory,
    QFedAvg,
    QFedSGD,
    Score,
    Uniform,
    simulate,
)
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.ledger import Ledger
from isfed.federation.object_agents import ObjectAgents

SOME = {"step_size": 0.02, "num_active": 2}
SECOND = Memory(score=Score.SECOND_MOMENT)
FIRST = 12  # N_k, E_k and B_k of four agents


def ledger_of(method, *, rounds=5, **options):
    return simulate(regression(), method, rounds=rounds, engine="agents", **options).ledger()


def test_a_number_is_four_bytes_and_data_are_as_they_are():
    ledger = Ledger(models_up=3, scalars_up=5, models_down=2, scalars_down=1, data_up=100)
    assert ledger.bytes_up(10) == 4 * (3 * 10 + 5) + 100
    assert ledger.bytes_down(10) == 4 * (2 * 10 + 1)
    assert Ledger(gradients=10, forwards=6).work == 12
    assert Ledger.from_array(ledger.as_array()) == ledger


def test_sizes_and_rounds_are_told():
    for engine in ("kernel", "agents", "objects"):
        found = simulate(regression(), FedAvg(**SOME), rounds=7, engine=engine).ledger()
        assert (found.rounds, found.scalars_up) == (7, FIRST)


@pytest.mark.parametrize("correction", [None, "difference", "drift"])
@pytest.mark.parametrize("agents", [Memory(), SECOND, Uniform()], ids=["memory", "second", "equal"])
def test_engines_charge_the_same(correction, agents):
    method = ISFedAvg(correction=correction, agents=agents, **SOME)
    found = [
        simulate(regression(), method, rounds=6, engine=engine).ledger()
        for engine in ("kernel", "agents", "objects")
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("method", "models_down", "models_up", "scalars_up"),
    [
        (FedAvg(**SOME), 2, 2, 0),
        (ISFedAvg(**SOME), 2, 2, 2),
        (ISFedAvg(correction="drift", **SOME), 4, 2, 4),  # c; the score and <v', v>
        (ISFedAvg(correction="difference", agents=Uniform(), **SOME), 4, 2, 2),
        (ISFedAvg(correction=Correction("drift", gain=0.1), agents=SECOND, **SOME), 4, 2, 0),
        (SCAFFOLD(**SOME), 4, 4, 0),
        (LocalSGD(step_size=0.02), 4, 4, 0),
        (QFedAvg(**SOME), 2, 2, 2),
        (QFedSGD(**SOME), 2, 2, 2),
        (FOLB(**SOME), 2, 4, 0),
        (FOLB(penalty=0.1, **SOME), 2, 4, 2),
        (FOLB(variant="two-sets", **SOME), 4, 6, 0),
        (AgnosticFL(step_size=0.02), 4, 4, 4),
        (AgnosticFL(step_size=0.02, stochastic=True), 2, 1, 1),
        (AgnosticFL(step_size=0.02, stochastic=True, gradient="per-domain"), 4, 4, 1),
        (FedCS(**SOME), 2, 2, 6),
    ],
    ids=str,
)
def test_what_crosses_in_a_round(method, models_down, models_up, scalars_up):
    found = ledger_of(method)
    assert found.models_down == 5 * models_down
    assert found.models_up == 5 * models_up
    assert found.scalars_up == FIRST + 5 * scalars_up


def test_adaptive_tau_sends_a_gradient_and_three_numbers():
    """The risk at w, beta and rho of every agent; nothing to estimate in the first round."""
    found = ledger_of(AdaptiveTau(step_size=0.02, budget=1e9))
    assert found.models_down == 5 * 4
    assert found.models_up == 4 * (5 + 4)
    assert found.scalars_up == FIRST + 4 * (5 + 2 * 4)


def test_uploaded_examples_have_their_true_size():
    found = ledger_of(HybridFL(permit=1.0, fetch=1, **SOME))
    assert found.data_up == 5 * 8 * (3 + 1)  # three features and the target, eight bytes each


def test_forward_passes_and_gradients_of_a_question():
    problem = regression()
    for kind in (CompiledAgents, ObjectAgents):
        agents = kind(problem, FedAvg(**SOME).rules(4), seed=0, repetition=0)
        which, model = np.array([1, 3]), np.zeros(3)
        agents.losses(which, model)
        assert (agents.ledger.forwards, agents.ledger.models_down) == (15, 2)
        agents.gradients(which, model, sent=True, kept=True)
        assert (agents.ledger.gradients, agents.ledger.models_up) == (15, 0)
        agents.sampled_losses(which, model, 0)
        assert agents.ledger.forwards == 17
        turns, steps = TrainRequest(which, model, np.ones(2)), np.array([3, 3])
        agents.work(turns, 0, LocalOptions(steps=steps, batch=1))
        assert agents.ledger.gradients == 15 + 6


def test_the_seconds_of_a_question():
    clock = Clock(rate=(3.0, 3.0), upload=(8.0, 8.0), download=(4.0, 4.0), latency=0.5)
    agents = ObjectAgents(regression(), FedAvg(**SOME).rules(4), seed=0, repetition=0)
    agents.use_clock(clock)

    def spent(ask):
        before = agents.ledger.seconds
        ask()
        return agents.ledger.seconds - before

    which, model = np.array([1, 3]), np.zeros(3)  # of nine and six examples, three parameters
    down, up = 12 / 4.0 + 0.5, 12 / 8.0 + 0.5
    np.testing.assert_allclose(
        spent(lambda: agents.losses(which, model)), down + 9 / 3 / 3.0 + 4 / 8.0 + 0.5
    )
    np.testing.assert_allclose(
        spent(lambda: agents.losses(which, model, sent=True)), 9 / 3 / 3.0 + 4 / 8.0 + 0.5
    )
    np.testing.assert_allclose(spent(lambda: agents.gradients(which, model)), down + 9 / 3.0 + up)
    turns = TrainRequest(which, model, np.ones(2))
    np.testing.assert_allclose(spent(lambda: agents.work(turns, 0)), down + 4 / 3.0 + up)
    np.testing.assert_allclose(
        spent(lambda: agents.work(turns, 0, LocalOptions(sent=True))), 4 / 3.0 + up
    )
