"""Servers and step sizes by round, against their formulas written out."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from isfed import (
    PAPER,
    Add,
    Average,
    DecentralisedSGD,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    HartleyRao,
    ISFedAvg,
    LookAhead,
    Memory,
    Method,
    ModelState,
    Scheduled,
    Served,
    ServerMomentum,
    TrainRequest,
    Uniform,
    certify,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods.by_score import ByScore
from isfed.methods.servers import BLOCKS, as_server
from isfed.simulate.rounds_run import RoundsRun
from isfed.studies.name_registry import METHODS, method_keys

PROBLEM = PAPER.make()
FEDAVG = FedAvg(step_size=0.01, num_active=6)
DRIFT = ISFedAvg(step_size=0.01, num_active=6, agents=Memory(), correction="drift")


@dataclass(frozen=True, kw_only=True)
class OwnRounds(Method):
    """A method with a round of its own: the first agents of all, in turn."""

    step_size: float = 0.01
    num_active: int = 3

    def round(self, state, agents, round_index):
        active = np.arange(self.num_active) + self.num_active * round_index
        step = np.full(active.size, self.step_size)
        uploads = agents.work(TrainRequest(active, state.params, step), round_index)
        return ModelState(state.params + uploads.changes.mean(axis=0))


def make_run(algorithm) -> Any:
    zero = np.zeros(PROBLEM.num_params)
    return RoundsRun(PROBLEM, algorithm, CompiledAgents, repetitions=1, seed=4, initial=zero)


def step_from(method, agents, params, round_index):
    """What a method that keeps nothing but its model would add to a model in a round."""
    return method.round(method.start(agents, params), agents, round_index).params - params


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
    params, memory = np.ones(3), server.init(np.ones(3))
    found = []
    for update in updates:
        params, memory = server.move(memory, params, update)
        found.append(params)
    np.testing.assert_allclose(found, literal(server, updates, np.ones(3)), rtol=1e-12)


def test_no_momentum_and_a_unit_step_are_the_method_itself():
    plain, served = make_run(FEDAVG), make_run(Served(FEDAVG, ServerMomentum(momentum=0.0)))
    plain.advance(5)
    served.advance(5)
    np.testing.assert_allclose(served.params, plain.params, rtol=1e-13)
    np.testing.assert_array_equal(served.agents[0].ledger.as_array(),
                                  plain.agents[0].ledger.as_array())  # fmt: skip


@pytest.mark.parametrize("method", [FEDAVG, OwnRounds()], ids=["parts", "own rounds"])
@pytest.mark.parametrize("ahead", [False, True], ids=["momentum", "FedACG"])
def test_momentum_adds_up_the_steps_of_the_rounds(method, ahead):
    """FedAvgM; looking ahead, FedACG: steps are found at w + momentum x (the last move)."""
    server: Any = ServerMomentum(step_size=0.5, momentum=0.8)
    run, inner = make_run(Served(method, LookAhead(server) if ahead else server)), make_run(method)
    velocity, params = np.zeros(PROBLEM.num_params), np.zeros(PROBLEM.num_params)
    for i in range(4):
        sent = params + 0.8 * 0.5 * velocity if ahead else params
        velocity = 0.8 * velocity + step_from(method, inner.agents[0], sent, i)
        params = params + 0.5 * velocity
        run.advance(1)
        np.testing.assert_allclose(run.params[0], params, rtol=1e-12)


@pytest.mark.parametrize("method", [FEDAVG, OwnRounds()], ids=["parts", "own rounds"])
def test_adam_that_looks_ahead_is_evaluated_there(method):
    run = make_run(Served(method, LookAhead(FedAdam(step_size=0.02, beta_1=0.7))))
    inner = make_run(method)
    first, second, last, params = (np.zeros(PROBLEM.num_params) for _ in range(4))
    second += 1e-6
    for i in range(5):
        step = step_from(method, inner.agents[0], params + 0.7 * last, i)
        first, second = 0.7 * first + 0.3 * step, 0.99 * second + 0.01 * step**2
        last = 0.02 * first / (np.sqrt(second) + 1e-3)
        params = params + last
        run.advance(1)
        np.testing.assert_allclose(run.params[0], params, rtol=1e-11)


def test_what_is_ahead_and_what_is_averaged_is_the_trained_part():
    params = np.array([1.0, 2.0, 7.0])  # the last is a buffer
    for window in ("half", "pass"):
        server = Average(LookAhead(Add(), reach=0.5), window=window)
        state = server.init(params[:2], 4.0)
        np.testing.assert_array_equal(server.show(state, params), params)
        moved, state = server.move(state, params[:2], np.array([2.0, -2.0]))
        now = np.append(moved, 8.0)
        np.testing.assert_array_equal(now, [3.0, 0.0, 8.0])
        np.testing.assert_array_equal(server.send(state, now), [4.0, -1.0, 8.0])
        np.testing.assert_array_equal(now, [3.0, 0.0, 8.0])  # which is not written into
        again, state = server.move(state, moved, np.array([1.0, 1.0]))
        shown = server.show(state, np.append(again, 9.0))
        # In round 2 the last half is one round; a horizon of 1 + 1/4 weighs it with 4/5.
        expected = [4.0, 1.0] if window == "half" else [3.8, 0.8]
        np.testing.assert_allclose(shown, [*expected, 9.0], rtol=1e-15)


def averages(models, window, rounds_per_pass=np.inf):
    """What `Average` shows after each of some models."""
    server = Average(window=window)
    state, params = server.init(models[0], rounds_per_pass), np.zeros(models.shape[1])
    shown = []
    for model in models:
        params, state = server.move(state, params, model - params)
        shown.append(server.show(state, params))
    return np.array(shown)


def test_the_average_of_the_last_half_is_that_of_whole_blocks():
    models = np.random.default_rng(1).standard_normal((300, 2))
    found, shares = averages(models, "half"), []
    for done in range(1, 301):
        length = 1
        while BLOCKS * length < done:
            length *= 2
        first = done // 2 // length * length  # the block in which the last half begins
        np.testing.assert_allclose(found[done - 1], models[first:done].mean(axis=0), atol=1e-12)
        shares.append((done - first) / done)
        assert length > 1 or first == done // 2
    assert min(shares) >= 0.5
    assert max(shares[BLOCKS:]) < 2 / 3


def test_the_average_over_a_pass_weighs_by_a_growing_horizon():
    models = np.random.default_rng(2).standard_normal((60, 2))
    found = averages(models, "pass", 6.5)
    for done in range(1, 61):
        weights = []
        for i in range(done):  # what is left of the model after round i + 1
            rest = [1 - 1 / min(6.5, 1 + j / 4) for j in range(i + 1, done)]
            weights.append(np.prod(rest) / min(6.5, 1 + i / 4))
        assert np.isclose(sum(weights), 1.0)
        np.testing.assert_allclose(found[done - 1], weights @ models[:done], atol=1e-12)


@pytest.mark.parametrize("method", [ISFedAvg(step_size=0.01, num_active=6), OwnRounds()],
                         ids=["parts", "own rounds"])  # fmt: skip
def test_a_history_is_that_of_the_model_that_is_shown(method):
    rounds = 13
    plain = simulate(PROBLEM, method, rounds=rounds, keep=range(rounds + 1))
    served = Served(method, Average())
    found = simulate(PROBLEM, served, rounds=rounds, keep=range(rounds + 1), engine="agents")
    expected = [plain.kept[0, 0]]
    for done in range(1, rounds + 1):
        first = done // 2 if done <= 8 else done // 4 * 2
        expected.append(plain.kept[0, first + 1 : done + 1].mean(axis=0))
    np.testing.assert_allclose(found.kept[0], expected, rtol=1e-12)
    np.testing.assert_array_equal(found.params, found.kept[:, -1])
    distance = ((np.array(expected[1:]) - PROBLEM.optimum) ** 2).sum(axis=1)
    np.testing.assert_allclose(found.msd[0], distance, rtol=1e-10)
    for column in ("agent_prob", "gradients", "uploads", "ledgers", "telemetry"):
        np.testing.assert_array_equal(getattr(found, column), getattr(plain, column))


def test_averaged_isfedavg_is_that_server():
    method = ISFedAvg(step_size="auto", num_active=6)
    averaged = replace(method, average=True)
    assert averaged.name == "ISFedAvg, memory, averaged"
    one = simulate(PROBLEM, averaged, rounds=5)
    other = simulate(PROBLEM, Served(method, Average()), rounds=5)
    np.testing.assert_array_equal(one.params, other.params)
    assert one.step_size == other.step_size
    assert not np.array_equal(one.params, simulate(PROBLEM, method, rounds=5).params)
    with pytest.raises(ValueError, match="'auto' is not available for Served"):
        simulate(PROBLEM, Served(method, FedAdam()), rounds=5)
    with pytest.raises(TypeError, match="averaged has a server that shows another model than it"):
        simulate(PROBLEM, Served(replace(averaged, step_size=0.1), FedAdam()), rounds=5)
    ring = DecentralisedSGD(step_size=0.1)
    with pytest.raises(TypeError, match="DecentralisedSGD keeps more than one model, and a server"):
        simulate(PROBLEM, Served(ring, FedAdam()), rounds=5)


def test_a_server_after_that_of_a_composition_takes_the_moves_of_both():
    """As `Served` has always meant: the update of the method inside goes through the optimiser."""
    inner = Served(FEDAVG, ServerMomentum(momentum=0.5))
    found, plain = make_run(Served(inner, ServerMomentum(momentum=0.2))), make_run(FEDAVG)
    params, inside, outside = (np.zeros(PROBLEM.num_params) for _ in range(3))
    for i in range(4):
        inside = 0.5 * inside + step_from(FEDAVG, plain.agents[0], params, i)
        outside = 0.2 * outside + inside
        params = params + outside
        found.advance(1)
        np.testing.assert_allclose(found.params[0], params, rtol=1e-12)


def test_rounds_with_a_server_are_unbiased_too():
    small = PAPER.replace(num_agents=5, num_examples=4, batch_size=(1, 2)).make()
    method = ISFedAvg(step_size=0.01, num_active=2)
    served = Served(Scheduled(method, lambda i: 0.01 / (1 + i)), Average(LookAhead(FedAdam())))
    assert certify(small, served, rounds=3).unbiased


def all_methods():
    given: dict[str, Any] = {
        "step_size": 0.02, "num_active": 2, "strong": 1.0, "shift": 80.0, "steps": 2, "edges": 2,
        "output_layer": (1, 1), "warm_up": 1, "every": 1,
    }  # fmt: skip
    for name in METHODS:
        keys = method_keys(name)
        yield METHODS[name](**{key: value for key, value in given.items() if key in keys})


def with_step_sizes():
    return [m for m in all_methods() if "step_size" in getattr(m, "__dataclass_fields__", {})]


@pytest.mark.parametrize("method", with_step_sizes(), ids=lambda method: method.name)
def test_a_schedule_is_the_method_with_another_step_size_in_every_round(method):
    steps = [0.02, 0.005, 0.01]
    scheduled, inner = make_run(Scheduled(method, lambda i: steps[i])), make_run(method)
    assert scheduled.step_size == 0.02
    state, agents = inner.states[0], inner.agents[0]
    for i, step in enumerate(steps):
        state = replace(method, step_size=step).round(state, agents, i)
        scheduled.advance(1)
        np.testing.assert_array_equal(scheduled.params[0], method.model(state))


def keeps_one_model(method):
    state = make_run(method).states[0]
    return getattr(state, "params", None) is method.model(state)


@pytest.mark.parametrize(
    "method", [m for m in all_methods() if keeps_one_model(m)], ids=lambda method: method.name
)
def test_a_server_takes_the_change_of_any_method(method):
    """The update of a round, literally; parts hand the step itself on, which rounds otherwise."""
    served, inner = make_run(Served(method, ServerMomentum(momentum=0.3))), make_run(method)
    state, agents = inner.states[0], inner.agents[0]
    velocity = np.zeros(PROBLEM.num_params)
    for i in range(3):
        before = np.array(state.params)
        state = method.round(state, agents, i)
        velocity = 0.3 * velocity + state.params - before
        state = state._replace(params=before + velocity)
        served.advance(1)
        np.testing.assert_allclose(served.params[0], state.params, rtol=1e-11, atol=1e-14)


class Halved:
    """An optimiser of version 0.1 that also counts its steps."""

    def start(self, size):
        return {"count": np.zeros(1), "total": np.zeros(size)}

    def step(self, memory, params, update):
        total = memory["total"] + update
        return params + 0.5 * update, {"count": memory["count"] + 1, "total": total}


@pytest.mark.parametrize("method", [FEDAVG, OwnRounds()], ids=["parts", "own rounds"])
def test_an_optimiser_of_version_01_still_works(method):
    with pytest.warns(DeprecationWarning, match="Halved has start and step") as told:
        old = Served(method, Halved())
    assert told[0].filename == __file__
    assert old.name == f"{method.name}, Halved"
    found = make_run(old)
    found.advance(4)
    plain = make_run(Served(method, ServerMomentum(step_size=0.5, momentum=0.0)))
    plain.advance(4)
    np.testing.assert_array_equal(found.params, plain.params)
    assert found.states[0].server.count == 4
    again = make_run(replace(old, algorithm=method))  # says nothing a second time
    again.restore(found.state())
    np.testing.assert_array_equal(again.states[0].server.total, found.states[0].server.total)


@pytest.mark.parametrize(
    "algorithm",
    [
        Served(FEDAVG, FedYogi()),
        Served(DRIFT, FedAdam()),
        Served(Scheduled(DRIFT, lambda i: 0.02 / (1 + i)), ServerMomentum()),
        Served(DRIFT, Average(LookAhead(FedAdam()))),
        Served(DRIFT, Average(window="pass")),
    ],
    ids=["FedYogi", "drift and FedAdam", "schedule and momentum", "half", "pass"],
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


@pytest.mark.parametrize("server", [FedYogi(), Average(LookAhead(ServerMomentum()))])
def test_around_rounds_of_ones_own_a_run_goes_on_too(server):
    algorithm = Served(Scheduled(OwnRounds(), lambda i: 0.02 / (1 + i)), server)
    whole, first, second = (make_run(algorithm) for _ in range(3))
    assert algorithm.federated is None
    whole.advance(7)
    first.advance(3)
    second.restore(first.state())
    second.round_index = 3
    second.advance(4)
    np.testing.assert_array_equal(second.params, whole.params)


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="step_size=-1 for round 1"):
        make_run(Scheduled(FEDAVG, lambda i: -1 if i else 0.1)).advance(2)
    with pytest.raises(TypeError, match="directly around the method"):
        Scheduled(Served(FEDAVG, FedAdam()), lambda i: 0.1)
    with pytest.raises(TypeError, match="must be a function"):
        Scheduled(FEDAVG, 0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an optimiser"):
        Served(FEDAVG, FedAdam)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"lacks send, show; derive it from isfed\.Add"):
        as_server(type("Half", (), {"init": print, "move": print})())
    with pytest.raises(TypeError, match="must be an optimiser"):
        Average(LookAhead)
    with pytest.raises(ValueError, match="window='tail' must be"):
        Average(window="tail")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="FedAdagrad has no momentum to look ahead by; give reach"):
        LookAhead(FedAdagrad())
    with pytest.raises(ValueError, match="reach=1 must be"):
        LookAhead(FedAdam(), reach=1)
    with pytest.raises(TypeError, match="must be an algorithm"):
        Served(FedAdam(), FEDAVG)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"beta_2=1.0 must be"):
        FedYogi(beta_2=1.0)
    with pytest.raises(ValueError, match="tau=0 must be a positive"):
        FedAdagrad(tau=0)
    with pytest.raises(ValueError, match="momentum=1 must be"):
        ServerMomentum(momentum=1)


def test_a_sampler_asks_at_the_model_that_is_sent():
    """Agents that were asked for their losses have that model already, and it is not sent again."""
    asked = []

    class Asking(ByScore):
        def draw(self, state, facts, agents, params, round_index):
            asked.append(params)
            return super().draw(state, facts, agents, params, round_index)

    method = Served(FEDAVG, LookAhead(ServerMomentum())).federated
    assert method is not None
    method = replace(method, sampler=Asking(6, Uniform(), HartleyRao()))
    agents = make_run(FEDAVG).agents[0]
    state = method.start(agents, np.zeros(PROBLEM.num_params))
    for i in range(3):
        assert method.open(state, agents, i).sent is asked[-1]
        state = method.round(state, agents, i)
    assert not np.array_equal(asked[-1], state.params)
