"""A round with E_k = 1 is unbiased: its expected model is one gradient step, exactly.

The expectation is a finite sum. The uniforms behind a draw are planted in the generator; between
two break points of a uniform the units drawn do not change, so the midpoints, weighted with the
distances, give the integral. Everything but the random numbers is the library's own code.
"""

import copy
from itertools import pairwise, product

import numpy as np
import pytest

from isfed import (
    Current,
    Deville,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Score,
    Stream,
    Systematic,
    Uniform,
    WithReplacement,
)
from isfed.federation.messages import EVERY, Updates
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.federated import Evidence
from isfed.methods.object_federation import Federation
from isfed.sampling.policies import Refresh, Table

WORD = 2**64 - 1
STEP_SIZE = 0.05
DESIGNS = [Systematic(), Deville(), WithReplacement()]
PAIRS = {
    "uniform": (Uniform(), Uniform()),
    "oracle": (Oracle(), Oracle()),
    "current": (Current(), Current()),
    "running": (Running(), Running()),
    "running, no floor": (Running(floor=0.0), Running(floor=0.0)),
    "memory": (Memory(), Memory()),
    "second moment": (Memory(score=Score.SECOND_MOMENT), Memory(floor=0.0)),
    "memory, uniform": (Memory(), Uniform()),
}


def rotated(word, by):
    return ((word << by) | (word >> (64 - by))) & WORD


def planted(uniforms, *, after=0):
    """A state of xoshiro256++ whose outputs number `after` and `after` + 1 are these two."""
    first, second = (int(u * 2**53) << 11 for u in uniforms)
    # The output is rotate(a + d, 23) + a. With b = a ^ d the next a is 0 and the next d is
    # rotate(a, 45), so that the next output is rotate(a, 45 + 23), which is rotate(a, 4).
    a = rotated(second, 60)
    d = (rotated((first - a) & WORD, 64 - 23) - a) & WORD
    b, c = a ^ d, 0
    for _ in range(after):  # one step backwards
        d = rotated(d, 64 - 45)
        a ^= d
        both = b ^ c  # of the b before: b ^ (b << 17)
        before = (both ^ (both << 17) ^ (both << 34) ^ (both << 51)) & WORD
        c = b ^ before ^ a
        d, b = d ^ before, before
    return np.array([a, b, c, d], np.uint64)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_planted_uniforms_come_out(after):
    wanted = np.array([0.123, 0.987])
    stream = Stream(0)
    stream.state = planted(wanted, after=after)
    np.testing.assert_allclose(stream.uniforms(after + 2)[after:], wanted, rtol=0, atol=1e-15)


def between(breaks):
    """(length, midpoint) of the cells that the break points cut [0, 1) into."""
    points = np.unique(np.concatenate([[0.0, 1.0], np.clip(breaks, 0.0, 1.0)]))
    return [(high - low, (low + high) / 2) for low, high in pairwise(points)]


def deville_cells(ends):
    """Both uniforms of Deville's draw of two from units that end at `ends`, ending at 2."""
    border = int(np.searchsorted(ends, 1.0, side="right"))  # the unit across 1
    start = ends[border - 1] if border else 0.0
    before, after = 1.0 - start, ends[border] - 1.0  # its parts in the two strata
    beyond = (ends[border:] - ends[border]) / (1.0 - after)  # the rest of the second stratum
    chance = after / (1.0 - before)
    for length, first in between(ends[ends < 1.0]):
        taken = first > start
        breaks = beyond if taken else chance + (1.0 - chance) * beyond
        for part, second in between(breaks):
            yield length * part, (first, second), 0


def cells(table, num):
    """(probability, uniforms, how many uniforms go by before them) of every outcome of a draw."""
    if isinstance(table.design, WithReplacement):
        each = between(np.cumsum(table.probabilities()))
        for one, other in product(each, each):
            yield one[0] * other[0], (one[1], other[1]), 0
        return
    inclusion = table.inclusion(num)
    certain = int(np.count_nonzero(inclusion == 1.0))
    ends = np.cumsum(np.where(inclusion == 1.0, 0.0, inclusion))
    deville = isinstance(table.design, Deville)
    if certain == num:
        yield 1.0, (0.5, 0.5), 0
    elif deville and certain == 0:
        yield from deville_cells(ends)
    else:  # one uniform for the rest, after those of the draw that met the certain unit
        gone = (num if deville else 1) if certain else 0
        for length, offset in between(ends % 1.0):
            yield length, (offset, 0.5), gone


class PlantedStream:
    """Stands in for `Stream` where agent and cloud look their random numbers up."""

    state = np.zeros(4, np.uint64)

    @classmethod
    def at(cls, key, *, round_index, agent):
        return cls()


def expected_model(federation):
    """E[w_i | w_{i-1}] of the round that comes next."""
    method, agents, params = federation.method, federation.agents, federation.params
    facts, table = method.facts(federation.objects), federation.table
    if method.sampler.policy.refresh == Refresh.ALL:
        table.replace(federation.objects.scores_at(params))

    def expected_change(k, agent_prob):
        table = copy.deepcopy(agents[k].table)
        if table.policy.refresh == Refresh.ALL:
            table.replace(agents[k].norms_at(params)[0])
        total = np.zeros_like(params)
        for probability, uniforms, gone in cells(table, agents[k].batch_size):
            PlantedStream.state = planted(uniforms, after=gone)
            total += probability * copy.deepcopy(agents[k]).work(params, agent_prob, 0).change
        return total

    changes = {}
    total = np.zeros_like(params)
    for probability, uniforms, gone in list(cells(table, method.sampler.num_active)):
        PlantedStream.state = planted(uniforms, after=gone)
        state = copy.deepcopy(federation.state)
        opened = method.open(state, federation.objects, 0)
        drawn = opened.cohort
        for k, prob in zip(drawn.agents, drawn.prob, strict=True):
            if k not in changes:
                changes[k] = expected_change(k, prob)
        # The model is linear in the changes: their means will do.
        means, none = np.array([changes[k] for k in drawn.agents]), np.zeros(drawn.agents.size)
        updates = Updates(EVERY, means, none, none[:, None], none[:, None])
        total += probability * method.close(state, facts, opened, updates, 0)[0].params
    return total


def gradient_step(problem, params):
    gradients = [
        problem.loss.gradient(params, *problem.data.agent(k), np.ones(problem.data.num_examples[k]))
        for k in range(problem.num_agents)
    ]
    return params - STEP_SIZE * np.mean([gradient for gradient, _ in gradients], axis=0)


@pytest.fixture
def make_federation(monkeypatch):
    """K = 4, L = 2, N_k from 3 to 5, B_k = 2, E_k = 1, after five ordinary rounds."""

    def make(agents, examples, design, *, loss=None):
        rng = np.random.default_rng(4)
        data = []
        for n in (3, 5, 4, 3):
            x = rng.standard_normal((n, 2))
            data.append((x, np.sign(x @ [1.0, -2.0] + rng.standard_normal(n))))
        problem = Problem(
            FederatedData.from_agents(data), loss or LeastSquares(0.1), local_steps=1, batch_size=2
        )
        algorithm = ISFedAvg(
            step_size=STEP_SIZE,
            num_active=2,
            agents=agents,
            examples=examples,
            agent_design=design,
            example_design=design,
        )
        federation = Federation(problem, algorithm, seed=1, repetition=0, initial=np.ones(2))
        for i in range(5):
            federation.step(i)
        monkeypatch.setattr("isfed.federation.agent.Stream", PlantedStream)
        monkeypatch.setattr("isfed.federation.agents.Stream", PlantedStream)
        return federation

    return make


each_design = pytest.mark.parametrize("design", DESIGNS, ids=lambda design: type(design).__name__)


@each_design
@pytest.mark.parametrize("loss", [LeastSquares(0.1), Logistic(0.1)], ids=["squares", "logistic"])
@pytest.mark.parametrize(("agents", "examples"), PAIRS.values(), ids=PAIRS.keys())
def test_the_expected_model_is_one_gradient_step(make_federation, agents, examples, loss, design):
    federation = make_federation(agents, examples, design, loss=loss)
    expected = gradient_step(federation.problem, federation.params)
    if not agents.equal:  # five rounds have made something of the tables
        assert np.ptp(federation.table.probabilities()) > 0.01
    np.testing.assert_allclose(expected_model(federation), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("design", [Systematic(), Deville()], ids=["Systematic", "Deville"])
def test_so_it_is_where_an_agent_and_an_example_are_certain(make_federation, design):
    federation = make_federation(Oracle(), Oracle(), design)
    federation.table.replace(np.array([1.0, 9.0, 3.0, 2.0]))
    for agent in federation.agents:
        agent.table.replace(np.append(20.0, np.arange(1.0, len(agent.targets))))
        assert agent.table.inclusion(2)[0] == 1.0
    assert federation.table.inclusion(2)[1] == 1.0
    expected = gradient_step(federation.problem, federation.params)
    np.testing.assert_allclose(expected_model(federation), expected, rtol=0, atol=1e-12)


def renormalised(self, state, opened, updates, facts):
    """The wrong mean: divided by the sum of the weights 1 / (K p_k)."""
    drawn = opened.cohort
    step = drawn.times @ updates.change / np.sum(drawn.times / (facts.num_agents * drawn.prob))
    return step, state, Evidence(updates.score, updates.change)


def plain_mean(draw):
    """The wrong weights: 1/L and 1/B for everyone, whatever the inclusion probabilities."""

    def drawn(self, num, stream):
        units, prob = draw(self, num, stream)
        return units, np.full(len(prob), 1.0 / self.count)

    return drawn


@each_design
@pytest.mark.parametrize("wrong", ["renormalised", "plain mean"])
def test_a_wrong_weight_fails_the_same_check(make_federation, monkeypatch, design, wrong):
    federation = make_federation(Memory(), Memory(), design)
    if wrong == "renormalised":
        monkeypatch.setattr(HorvitzThompson, "combine", renormalised)
    else:
        monkeypatch.setattr(Table, "draw", plain_mean(Table.draw))
    expected = gradient_step(federation.problem, federation.params)
    step = np.linalg.norm(expected - federation.params)
    assert np.linalg.norm(expected_model(federation) - expected) > 1e-3 * step
