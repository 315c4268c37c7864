"""Agents that train a module do what agents as objects do, and what a plain loop does."""

# pyright: reportMissingImports=false

from copy import deepcopy
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from isfed import (
    FOLB,
    Current,
    Deville,
    FedAvg,
    FederatedData,
    FedVARP,
    HartleyRao,
    ISFedAvg,
    Memory,
    Poisson,
    Problem,
    Running,
    Sampford,
    Score,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.base.random_streams import Purpose
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.federation.messages import EVERY, Updates
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.fedavg_schemes import FedAvgScheme
from isfed.methods.q_ffl import QFedAvg
from isfed.sampling.policies import Table
from isfed.simulate.rounds_run import RoundsRun
from isfed.torch import Network, importance
from isfed.torch.agents import TorchAgents

RNG = np.random.default_rng(0)
AGENTS = [
    (RNG.standard_normal((n, 4)) + 2.0 * RNG.standard_normal(4), RNG.integers(0, 3, n))
    for n in (6, 9, 5, 12)
]


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def make_problem(make=mlp, local_steps=3, batch_size=2, **options):
    data = FederatedData.from_agents(AGENTS)
    return Problem(data, Network(make, **options), local_steps, batch_size)


def make_algorithm(agents, examples, **options):
    options = {"agent_design": Deville(), "example_design": Deville(), **options}
    return ISFedAvg(step_size=0.3, num_active=2, agents=agents, examples=examples, **options)


SECOND = partial(Memory, score=Score.SECOND_MOMENT)
ALGORITHMS = {
    "uniform": make_algorithm(Uniform(), Uniform()),
    "FedAvg": FedAvg(step_size=0.3, num_active=2),
    "memory": make_algorithm(Memory(), Memory()),
    "second moment": make_algorithm(SECOND(), Uniform()),
    "running": make_algorithm(Running(), Running()),
    "current": make_algorithm(Current(), Current()),
    "poisson": make_algorithm(SECOND(), SECOND(), example_design=Poisson()),
    "poisson, uniform": make_algorithm(SECOND(), Uniform(), example_design=Poisson()),
    "poisson, steered": make_algorithm(
        SECOND(), Uniform(), example_design=Poisson(), correction="drift"
    ),
    "replacement": make_algorithm(SECOND(), Memory(), example_design=WithReplacement()),
}


def both_runs(problem, algorithm):
    initial = problem.loss.initial()
    return [
        RoundsRun(problem, algorithm, make, repetitions=2, seed=3, initial=initial)
        for make in (problem.loss.make_agents, ObjectAgents)
    ]


@pytest.mark.parametrize("score", ["last_layer", "exact"])
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_they_do_what_objects_do(algorithm, score):
    ours, objects = both_runs(make_problem(score=score), algorithm)
    first, second = ours.advance(6), objects.advance(6)
    np.testing.assert_allclose(ours.params, objects.params, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(first.watched, second.watched, rtol=1e-5)
    for one, other in zip(ours.agents, objects.agents, strict=True):
        np.testing.assert_array_equal(one.ledger.as_array(), other.ledger.as_array())
        np.testing.assert_allclose(
            one.example_prob(ours.params[0]), other.example_prob(ours.params[0]), rtol=1e-9
        )


LOCALS = {
    "prox": LocalOptions(prox=0.4),
    "momentum": LocalOptions(momentum=0.7),
    "nesterov": LocalOptions(momentum=0.7, nesterov=True, velocity=RNG.standard_normal((2, 43))),
    "correction": LocalOptions(correction=RNG.standard_normal((2, 43))),
    "full batch": LocalOptions(full_batch=True),
    "steps": LocalOptions(steps=np.array([1, 4])),
    "everything": LocalOptions(
        steps=np.array([2, 3]),
        prox=0.1,
        momentum=0.5,
        full_batch=True,
        correction=RNG.standard_normal((2, 43)),
    ),
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_every_way_to_step_is_that_of_objects(local, shared):
    problem = make_problem(score="exact")
    ours, objects = (run.agents[0] for run in both_runs(problem, ALGORITHMS["second moment"]))
    models = problem.loss.initial() + (0.0 if shared else 0.1 * RNG.standard_normal((2, 43)))
    turns = TrainRequest(np.array([3, 0]), models, np.array([0.2, 0.05]))
    found, expected = (agents.work(turns, 5, local) for agents in (ours, objects))
    for name in ("changes", "scores", "gradients", "watch", "velocity"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-12, err_msg=name
        )


def test_losses_gradients_and_scores_are_those_of_objects():
    problem = make_problem(score="exact")
    ours, objects = (run.agents[0] for run in both_runs(problem, ALGORITHMS["memory"]))
    params, which = problem.loss.initial(), np.array([2, 0])
    for ask in ("losses", "gradients"):
        found, expected = (getattr(agents, ask)(which, params) for agents in (ours, objects))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(ours.scores_at(params), objects.scores_at(params), rtol=1e-12)
    np.testing.assert_array_equal(ours.ledger.as_array(), objects.ledger.as_array())


def test_fedavg_is_a_plain_pytorch_loop():
    """Written as anybody would, on the examples that the library drew; in float32."""
    problem = make_problem(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    agents = problem.loss.make_agents(
        problem, FedAvg(step_size=0.3, num_active=2).rules(4), seed=1, repetition=0
    )
    params = problem.loss.initial()
    uploads = agents.work(TrainRequest(np.array([1, 2]), params, np.full(2, 0.3)), 7)
    for i, agent in enumerate((1, 2)):
        module = problem.loss.module(params).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
        x, y = (torch.as_tensor(part) for part in problem.data.agent(agent))
        stream = agents.stream(Purpose.EXAMPLES, 7, agent)
        table = Table(len(y), Uniform(), WithReplacement())
        for _ in range(3):
            rows, _ = table.draw(2, stream)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
        trained = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).double()
        np.testing.assert_allclose(
            uploads.changes[i], trained.numpy() - params, rtol=1e-4, atol=1e-7
        )


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
        torch.optim.Adam,
        partial(torch.optim.RMSprop, alpha=0.9),
    ],
    ids=["momentum", "Adam", "RMSprop"],
)
@pytest.mark.parametrize("prox", [0.0, 0.5])
def test_a_local_optimizer_of_ones_own(optimizer, prox):
    problem = make_problem(optimizer=optimizer, batch_size=5)
    rules = FedAvg(step_size=0.1, num_active=2).rules(4)
    agents = problem.loss.make_agents(problem, rules, seed=1, repetition=0)
    params = problem.loss.initial()
    turns = TrainRequest(np.array([2]), params, np.array([0.1]))
    uploads = agents.work(turns, 0, LocalOptions(full_batch=True, prox=prox))
    module = problem.loss.module(params).train()
    made = optimizer(module.parameters(), lr=0.1)
    start = [p.detach().clone() for p in module.parameters()]
    x, y = (torch.as_tensor(part) for part in problem.data.agent(2))
    for _ in range(3):
        made.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        pulls = [(p - s).square().sum() for p, s in zip(module.parameters(), start, strict=True)]
        (loss + prox / 2 * sum(pulls)).backward()
        made.step()
    trained = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    np.testing.assert_allclose(uploads.changes[0], trained - params, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="both the method and the local optimizer"):
        agents.work(turns, 0, LocalOptions(momentum=0.9))


class Planted(Sampford):
    """Systematic sampling whose one uniform is given: its outcomes can be counted."""

    place: list[float]

    def __init__(self):
        object.__setattr__(self, "place", [0.5])

    def draw(self, inclusion, rng):
        ends = np.cumsum(inclusion)
        points = self.place[0] + np.arange(round(ends[-1]))
        return np.searchsorted(ends, points, side="right")

    def cells(self, inclusion):
        """Set the uniform to the middle of every cell, and yield the cell's length."""
        breaks = np.unique(np.round(np.append(np.cumsum(inclusion) % 1.0, [0.0, 1.0]), 14))
        for low, high in pairwise(breaks):
            self.place[0] = (low + high) / 2
            yield high - low


@pytest.mark.parametrize("score", ["last_layer", "exact"])
@pytest.mark.parametrize("examples", [Uniform(), Memory()], ids=["uniform", "memory"])
def test_a_round_of_one_local_step_is_unbiased(score, examples):
    """Every outcome of both draws, weighted with its probability, adds up to gradient descent."""
    problem = make_problem(local_steps=1, score=score)
    for_agents, for_examples = Planted(), Planted()
    algorithm = make_algorithm(
        SECOND(), examples, agent_design=for_agents, example_design=for_examples
    )
    agents = problem.loss.make_agents(problem, algorithm.rules(4), seed=0, repetition=0)
    state = algorithm.start(agents, problem.loss.initial())
    for i in range(8):  # until the tables know something
        for_agents.place[0], for_examples.place[0] = RNG.random(2)
        state = algorithm.round(state, agents, i)
    kept, params = agents.state(), state.params
    method = algorithm.federated
    facts, table = method.facts(agents), method.sampler.table(state.sampler, 4)
    assert np.ptp(table.probabilities()) > 0.01

    def mean_change(k, step):
        total = np.zeros_like(params)
        for length in for_examples.cells(agents.table(k).inclusion(2)):
            turns = TrainRequest(np.array([k]), params, np.array([step]))
            total += length * agents.work(turns, 99).changes[0]
            agents.restore(kept)
        return total

    expected = np.zeros_like(params)
    for length in for_agents.cells(table.inclusion(2)):
        opened = method.open(deepcopy(state), agents, 0)
        steps = opened.work.step(opened.cohort.agents, facts)
        means = [mean_change(k, step) for k, step in zip(opened.cohort.agents, steps, strict=True)]
        none = np.zeros((2, 1))
        updates = Updates(EVERY, np.array(means), none[:, 0], none, none)
        after = method.close(deepcopy(state), facts, opened, updates, 0)[0]
        expected += length * after.params
    descent = params - 0.3 * agents.gradients(np.arange(4), params).mean(axis=0)
    np.testing.assert_allclose(expected, descent, rtol=0, atol=1e-10)


def dropout():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


DROPPING = {
    **{name: ALGORITHMS[name] for name in ("memory", "second moment", "current")},
    "FOLB": FOLB(step_size=0.3, num_active=2),  # asks for gradients outside of turns
}


@pytest.mark.parametrize("algorithm", DROPPING.values(), ids=DROPPING)
def test_a_run_with_dropout_repeats_itself_and_resumes_bit_equal(algorithm):
    problem = make_problem(dropout)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    whole = simulate(problem, algorithm, rounds=7, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)  # the user's own draws are untouched
    torch.manual_seed(2)
    np.testing.assert_array_equal(
        simulate(problem, algorithm, rounds=7, seed=5).params, whole.params
    )
    first, second = (
        RoundsRun(
            problem, algorithm, problem.loss.make_agents,
            repetitions=1, seed=5, initial=problem.loss.initial(),
        )
        for _ in range(2)
    )  # fmt: skip
    first.advance(3)
    second.restore(first.state())
    second.round_index = 3
    second.advance(4)
    np.testing.assert_array_equal(second.params, whole.params)
    np.testing.assert_array_equal(second.agents[0].ledger.as_array(), whole.ledger().as_array())


def test_the_buffers_of_batch_norm_are_averaged_with_the_weights():
    problem = make_problem(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double())
    algorithm = FedAvg(step_size=1e-9, num_active=4)  # everybody, and the weights stay
    params = problem.loss.initial()
    history = simulate(problem, algorithm, rounds=1, initial=params)
    state = problem.loss.state_dict(history.params[0])
    agents = problem.loss.make_agents(problem, algorithm.rules(4), seed=0, repetition=0)
    means = []
    for agent in range(4):
        module = problem.loss.module(params).train()
        x = torch.as_tensor(problem.data.agent(agent)[0])
        stream = agents.stream(Purpose.EXAMPLES, 0, agent)
        table = Table(len(x), Uniform(), WithReplacement())
        for _ in range(3):
            module(x[table.draw(2, stream)[0]])
        means.append(module[0].running_mean)
    torch.testing.assert_close(state["0.running_mean"], torch.stack(means).mean(0))
    assert state["0.num_batches_tracked"].item() == 0  # an integer: kept, not averaged


SKEWED = {"step_size": 0.05, "num_active": 2}
BUFFERED = {
    "change": importance(**SKEWED),
    "step": importance(**SKEWED, weighting="step"),
    "size": importance(**SKEWED, client_weights="size"),
    "with replacement": importance(**SKEWED, agent_design=WithReplacement()),
    "difference": importance(**SKEWED, correction="difference"),
    "drift": importance(**SKEWED, correction="drift"),
    "FedVARP": FedVARP(**SKEWED),
    "FOLB": FOLB(**SKEWED),
    "FOLB, near-optimal": FOLB(**SKEWED, variant="near-optimal"),
    "QFedAvg": QFedAvg(**SKEWED),
    "scheme II": FedAvgScheme(**SKEWED, scheme="II", client_weights="size"),
    "original scheme": FedAvgScheme(**SKEWED, scheme="original", client_weights="size"),
}


@pytest.mark.parametrize("name", BUFFERED)
def test_buffers_stay_within_what_the_agents_sent(name, monkeypatch):
    """Agents of very different scales have very different weights, and running variances."""
    data = FederatedData.from_agents([(10.0 ** (k - 2) * x, y) for k, (x, y) in enumerate(AGENTS)])
    network = Network(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double())
    problem, trained = Problem(data, network, 20, 4), 8 + 15
    sent, work = [], TorchAgents.work

    def seen(agents, turns, *given):
        uploads = work(agents, turns, *given)
        sent.append((turns.params[trained:], uploads.changes[:, trained:].copy()))
        return uploads

    monkeypatch.setattr(TorchAgents, "work", seen)
    last = simulate(problem, BUFFERED[name], rounds=25).params[0][trained:]
    starts = [params for params, _ in sent[1:]]
    for (params, changes), after in zip(sent, [*starts, last], strict=True):
        models, slack = params + changes, 1e-12 * np.abs(params).max()
        assert (after >= models.min(axis=0) - slack).all()
        assert (after <= models.max(axis=0) + slack).all()
    assert (last[4:] > 0.0).all()  # the running variances


def test_equal_agents_share_their_tables():
    problem = make_problem()
    agents = problem.loss.make_agents(problem, ALGORITHMS["FedAvg"].rules(4), seed=0, repetition=0)
    agents.work(TrainRequest(np.arange(4), problem.loss.initial(), np.full(4, 0.1)), 0)
    assert len(agents.tables) == 4  # four sizes
    assert agents.state()["tables"].size == 0
    assert agents.state()["memory"].size == 0


def test_what_networks_cannot_do_is_said():
    problem = make_problem()
    with pytest.raises(ValueError, match="drift=0"):
        simulate(problem, make_algorithm(SECOND(), Uniform(), drift=0.1), rounds=1)

    huge = Network(lambda: nn.Linear(4, 3))
    object.__setattr__(huge, "num_params", lambda _: 10**9)
    broad = Problem(FederatedData.from_agents(AGENTS), huge)
    with pytest.raises(ValueError, match=r"32 GB for 4 agents.*SECOND_MOMENT"):
        huge.make_agents(broad, ALGORITHMS["memory"].rules(4), seed=0, repetition=0)


def test_a_turn_that_cannot_be_done_is_named():
    make = lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))  # noqa: E731
    problem = make_problem(make, batch_size=1)
    with pytest.raises(ValueError, match=r"agent \d cannot do its turn of round 0: Expected more"):
        simulate(problem, FedAvg(step_size=0.1, num_active=1), rounds=1)


def test_a_network_needs_no_optimum_and_starts_from_its_own_parameters(recwarn):
    problem = make_problem()
    history = simulate(problem, ALGORITHMS["uniform"], rounds=2)
    assert not recwarn.list
    assert history.no_msd is not None
    tiny = simulate(problem, FedAvg(step_size=1e-12, num_active=2), rounds=1)
    np.testing.assert_allclose(tiny.params[0], problem.loss.initial(), atol=1e-9)


def test_hartley_rao_draws_uniform_examples_too():
    algorithm = make_algorithm(Uniform(), Uniform(), example_design=HartleyRao())
    ours, objects = both_runs(make_problem(), algorithm)
    ours.advance(3)
    objects.advance(3)
    np.testing.assert_allclose(ours.params, objects.params, rtol=1e-10, atol=1e-13)
