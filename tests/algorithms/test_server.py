"""Optimisers of the cloud and step sizes by round, against their formulas written out."""

import numpy as np
import pytest

from isfed import (
    PAPER,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    ISFedAvg,
    Memory,
    Scheduled,
    Served,
    ServerMomentum,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.simulate.rounds_run import RoundsRun

PROBLEM = PAPER.make()
FEDAVG = FedAvg(step_size=0.01, num_active=6)
DRIFT = ISFedAvg(step_size=0.01, num_active=6, agents=Memory(), correction="drift")


def make_run(algorithm):
    zero = np.zeros(PROBLEM.num_params)
    return RoundsRun(PROBLEM, algorithm, CompiledAgents, repetitions=1, seed=4, initial=zero)


def literal(server, updates, params):
    """Algorithm 2 of Reddi et al., entry by entry."""
    models = []
    first = [0.0] * params.size
    second = [server.tau**2] * params.size
    x = params.tolist()
    for update in updates:
        for j, d in enumerate(update.tolist()):
            first[j] = server.beta_1 * first[j] + (1 - server.beta_1) * d
            if isinstance(server, FedAdagrad):
                second[j] = second[j] + d**2
            elif isinstance(server, FedYogi):
                sign = (second[j] > d**2) - (second[j] < d**2)
                second[j] = second[j] - (1 - server.beta_2) * d**2 * sign
            else:
                second[j] = server.beta_2 * second[j] + (1 - server.beta_2) * d**2
            x[j] += server.step_size * first[j] / (second[j] ** 0.5 + server.tau)
        models.append(list(x))
    return np.array(models)


@pytest.mark.parametrize("make", [FedAdagrad, FedAdam, FedYogi])
def test_adaptive_steps_are_those_of_the_paper(make):
    server = make(step_size=0.3, beta_1=0.6, tau=0.02)
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((5, 3)) * np.array([1.0, 0.1, 0.001])
    params, memory = np.ones(3), server.start(3)
    found = []
    for update in updates:
        params, memory = server.step(memory, params, update)
        found.append(params)
    np.testing.assert_allclose(found, literal(server, updates, np.ones(3)), rtol=1e-12)


def test_no_momentum_and_a_unit_step_are_the_method_itself():
    plain, served = make_run(FEDAVG), make_run(Served(FEDAVG, ServerMomentum(momentum=0.0)))
    plain.advance(5)
    served.advance(5)
    np.testing.assert_allclose(served.params, plain.params, rtol=1e-13)
    np.testing.assert_array_equal(served.agents[0].ledger.as_array(),
                                  plain.agents[0].ledger.as_array())  # fmt: skip


def test_momentum_adds_up_the_updates_of_the_rounds():
    run = make_run(Served(FEDAVG, ServerMomentum(step_size=0.5, momentum=0.8)))
    velocity, params = np.zeros(PROBLEM.num_params), np.zeros(PROBLEM.num_params)
    inner = make_run(FEDAVG)
    for i in range(4):
        state = FEDAVG.start(inner.agents[0], params)
        update = FEDAVG.round(state, inner.agents[0], i).params - params
        velocity = 0.8 * velocity + update
        params = params + 0.5 * velocity
        run.advance(1)
        np.testing.assert_allclose(run.params[0], params, rtol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        Served(FEDAVG, FedYogi()),
        Served(DRIFT, FedAdam()),
        Served(Scheduled(DRIFT, lambda i: 0.02 / (1 + i)), ServerMomentum()),
    ],
    ids=["FedYogi", "drift and FedAdam", "schedule and momentum"],
)
def test_a_run_goes_on_from_its_state_bit_for_bit(algorithm):
    whole, first, second = (make_run(algorithm) for _ in range(3))
    whole.advance(7)
    first.advance(3)
    second.restore(first.state())
    second.round_index = 3
    second.advance(4)
    np.testing.assert_array_equal(second.params, whole.params)
    assert simulate(PROBLEM, algorithm, rounds=2).agent_prob.shape == (1, PROBLEM.num_agents)


def test_a_schedule_is_the_method_with_another_step_size_in_every_round():
    steps = [0.02, 0.005, 0.01]
    scheduled = make_run(Scheduled(FEDAVG, lambda i: steps[i]))
    scheduled.advance(3)
    inner = make_run(FEDAVG)
    params = np.zeros(PROBLEM.num_params)
    for i, step in enumerate(steps):
        method = FedAvg(step_size=step, num_active=6)
        params = method.round(method.start(inner.agents[0], params), inner.agents[0], i).params
    np.testing.assert_array_equal(scheduled.params[0], params)
    assert scheduled.step_size == 0.02


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="step_size=-1 for round 1"):
        make_run(Scheduled(FEDAVG, lambda i: -1 if i else 0.1)).advance(2)
    with pytest.raises(TypeError, match="directly around the method"):
        Scheduled(Served(FEDAVG, FedAdam()), lambda i: 0.1)
    with pytest.raises(TypeError, match="must be a function"):
        Scheduled(FEDAVG, 0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an optimiser"):
        Served(FEDAVG, FedAdam)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an algorithm"):
        Served(FedAdam(), FEDAVG)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"beta_2=1.0 must be"):
        FedYogi(beta_2=1.0)
    with pytest.raises(ValueError, match="tau=0 must be a positive"):
        FedAdagrad(tau=0)
    with pytest.raises(ValueError, match="momentum=1 must be"):
        ServerMomentum(momentum=1)
