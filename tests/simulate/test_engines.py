"""Kernel and objects are one algorithm: equal to the last bit, however the work is cut up."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from isfed import (
    Current,
    Deville,
    DynamicFedAvg,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Sampford,
    Score,
    Systematic,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.simulate.kernel_run import KernelRun
from isfed.simulate.run_driver import Block, chunks

NAMES = ("telemetry", "msd", "params", "agent_prob", "example_prob", "gradients", "uploads")
POLICIES = {
    "uniform": Uniform(),
    "oracle": Oracle(),
    "current": Current(),
    "running": Running(),
    "memory": Memory(),
    "second moment": Memory(score=Score.SECOND_MOMENT, floor=0.0, rate=0.5),
}
DESIGNS = [Systematic(), Deville(), HartleyRao(), WithReplacement()]
LOSSES = {"squares": LeastSquares(0.01), "logistic": Logistic(0.01)}


def random_problem(sizes, *, num_features, loss, seed=0, outlier=False):
    """Ragged in everything: examples, batches, steps."""
    rng = np.random.default_rng([seed, num_features])
    truth = rng.standard_normal(num_features)
    agents = []
    for k, n in enumerate(sizes):
        x = rng.standard_normal((n, num_features))
        noise = rng.standard_normal(n) * (1000.0 if outlier and k == 1 else 1.0)
        y = x @ truth + noise
        agents.append((x, y if isinstance(loss, LeastSquares) else np.sign(y)))
    batch_size = [int(rng.integers(1, min(n, 6), endpoint=True)) for n in sizes]
    local_steps = rng.integers(1, 4, size=len(sizes), endpoint=True)
    return Problem(FederatedData.from_agents(agents), loss, local_steps, batch_size)


@pytest.fixture(scope="module")
def problems():
    """Eighteen agents of 1 to 40 examples: tables of one, two and three blocks of sixteen."""
    sizes = [1, 40, 2, 16, 17, 5, 33, 3, 8, 12, 31, 32, 1, 7, 24, 4, 10, 15]
    return {
        "squares": random_problem(sizes, num_features=3, loss=LOSSES["squares"]),
        "logistic": random_problem(sizes, num_features=9, loss=LOSSES["logistic"]),
    }


def isfedavg(agents, examples, *, designs=(None, None), **choices):
    agent_design, example_design = (design or Deville() for design in designs)
    return ISFedAvg(
        **({"step_size": 0.02, "num_active": 5} | choices),
        agents=agents,
        examples=examples,
        agent_design=agent_design,
        example_design=example_design,
    )


def assert_same(one, other):
    for name in NAMES:
        first, second = getattr(one, name), getattr(other, name)
        assert first.shape == second.shape, name
        assert np.array_equal(first, second), name


def compare_engines(problem, algorithm, *, rounds=12):
    run: dict[str, Any] = {"rounds": rounds, "repetitions": 2, "seed": 17}
    kernel = simulate(problem, algorithm, engine="kernel", **run)
    assert_same(kernel, simulate(problem, algorithm, engine="objects", **run))
    return kernel


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("examples", POLICIES)
@pytest.mark.parametrize("agents", POLICIES)
def test_every_pair_of_policies(problems, agents, examples, loss):
    compare_engines(problems[loss], isfedavg(POLICIES[agents], POLICIES[examples]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "designs",
    list(product(DESIGNS, DESIGNS)),
    ids=lambda pair: " and ".join(type(d).__name__ for d in pair),
)
def test_every_pair_of_designs(problems, designs, policy):
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], designs=designs)
    compare_engines(problems["squares"], algorithm, rounds=8)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(step_size=0.01, num_active=5),
        FedAvg(step_size=0.01, num_active=5, divide_by_steps=True),
        DynamicFedAvg(step_size=0.01, num_active=5),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_the_baselines(problems, algorithm, loss):
    compare_engines(problems[loss], algorithm)


@pytest.mark.parametrize("policy", POLICIES)
def test_drift(problems, policy):
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], drift=0.1)
    still = isfedavg(POLICIES[policy], POLICIES[policy])
    drifting = compare_engines(problems["squares"], algorithm)
    assert not np.array_equal(drifting.msd, compare_engines(problems["squares"], still).msd)
    compare_engines(problems["squares"], DynamicFedAvg(step_size=0.01, num_active=5, drift=0.1))


@pytest.mark.parametrize("policy", POLICIES)
def test_one_agent_of_one_example(policy):
    problem = random_problem([1], num_features=3, loss=LOSSES["squares"])
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], num_active=1)
    compare_engines(problem, algorithm)


def test_everybody_at_once(problems):
    algorithm = isfedavg(Memory(), Memory(), num_active=18)
    compare_engines(problems["squares"], algorithm)


def test_more_agents_than_a_scan_is_for():
    """Beyond 1024 units a draw descends from the root of the table."""
    problem = random_problem([1, 2] * 600, num_features=3, loss=LOSSES["squares"])
    compare_engines(problem, isfedavg(Memory(), Memory(), num_active=9), rounds=40)


@pytest.mark.parametrize("policy", ["oracle", "memory"])
def test_threads_do_not_matter_where_certain_units_are_set_aside(policy):
    """One agent dominates: every draw takes it out of the table and puts it back."""
    problem = random_problem([6] * 8, num_features=3, loss=LOSSES["squares"], outlier=True)
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], num_active=3, step_size=1e-4)
    run: dict[str, Any] = {"rounds": 300, "repetitions": 16}
    alone = simulate(problem, algorithm, threads=1, **run)
    if policy == "oracle":
        assert (3 * alone.agent_prob[:, 1] > 1).all()
    for _ in range(3):
        assert_same(alone, simulate(problem, algorithm, threads=2, **run))


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_do_not_matter(problems, policy):
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy])
    one, two, three = (
        simulate(problems["squares"], algorithm, rounds=30, repetitions=7, threads=n)
        for n in (1, 2, 3)
    )
    assert_same(one, two)
    assert_same(one, three)


@pytest.mark.parametrize("policy", POLICIES)
def test_chunks_do_not_matter(problems, policy):
    problem = problems["squares"]
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], drift=0.01)
    whole = simulate(problem, algorithm, rounds=40, repetitions=3, seed=6)

    def start():
        return KernelRun(problem, algorithm, repetitions=3, seed=6, initial=np.zeros(3), threads=2)

    def joined(blocks):
        return Block(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))

    pieces = start()
    blocks = [pieces.advance(size) for size in (1, 7, 2, 29, 1)]
    assert_same(whole, pieces.history(joined(blocks)))
    for seconds in (1e-9, 10.0):
        chunked = start()
        blocks = list(chunks(chunked, 40, seconds=seconds))
        assert len(blocks) > 1
        assert_same(whole, chunked.history(joined(blocks)))


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_a_seed_is_a_result(problems, engine):
    algorithm = isfedavg(Memory(), Memory())
    run = {"rounds": 10, "repetitions": 3, "engine": engine}
    one, same, other = (simulate(problems["squares"], algorithm, seed=s, **run) for s in (1, 1, 2))
    assert_same(one, same)
    assert not np.isin(one.msd[:, -1], other.msd[:, -1]).any()
    assert len(set(one.msd[:, -1])) == 3  # and a repetition is one of its own


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_a_repetition_does_not_depend_on_how_many_there_are(problems, engine):
    algorithm = isfedavg(Memory(), Memory())
    few, many = (
        simulate(problems["squares"], algorithm, rounds=10, repetitions=n, engine=engine)
        for n in (2, 4)
    )
    for name in NAMES:
        assert np.array_equal(getattr(few, name), getattr(many, name)[:2]), name


@pytest.mark.parametrize("engine", ["kernel", "objects"])
def test_progress_adds_up_and_the_start_is_respected(problems, engine):
    problem, steps = problems["squares"], []
    history = simulate(
        problem,
        isfedavg(Uniform(), Uniform(), step_size=1e-12),
        rounds=50,
        repetitions=2,
        initial=problem.optimum + np.array([3.0, 0.0, 4.0]),
        engine=engine,
        progress=steps.append,
    )
    assert sum(steps) == 100
    np.testing.assert_allclose(history.msd, 25.0, rtol=1e-6)


def test_a_loss_of_ones_own_runs_on_objects(problems):
    class Mine:
        """Least squares in plain NumPy."""

        def gradient(self, params, x, y, weight):
            each = -2.0 * (y - x @ params)[:, None] * x + 2.0 * 0.01 * params
            return weight @ each / len(y), np.linalg.norm(each, axis=1)

        def num_params(self, num_features):
            return num_features

        def check_targets(self, targets):
            pass

    ours = problems["squares"]
    mine = Problem(ours.data, Mine(), ours.local_steps, ours.batch_size, optimum=ours.optimum)
    algorithm = isfedavg(Memory(), Memory())
    expected = simulate(ours, algorithm, rounds=20)
    np.testing.assert_allclose(simulate(mine, algorithm, rounds=20).msd, expected.msd, rtol=1e-9)
    with pytest.raises(ValueError, match="use engine='objects'"):
        simulate(mine, algorithm, rounds=20, engine="kernel")


def test_the_kernel_says_which_designs_it_does_not_know(problems):
    algorithm = isfedavg(Memory(), Memory(), designs=(Sampford(), None))
    with pytest.raises(ValueError, match="cannot run this loss, design or algorithm"):
        simulate(problems["squares"], algorithm, rounds=3, engine="kernel")
    assert simulate(problems["squares"], algorithm, rounds=3).rounds == 3


@pytest.mark.parametrize("engine", ["kernel", "objects"])
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_active": 19}, "num_active=19 exceeds num_agents=18"),
        ({"rounds": 0}, "rounds=0 must be a whole number >= 1"),
        ({"rounds": -1}, "rounds=-1 must be a whole number >= 1"),
        ({"rounds": 2.0}, "rounds=2.0 must be a whole number >= 1"),
        ({"repetitions": 0}, "repetitions=0 must be a whole number >= 1"),
        ({"repetitions": True}, "repetitions=True must be a whole number >= 1"),
        ({"initial": [0.0]}, r"initial must be 3 finite numbers, got shape \(1,\)"),
        ({"initial": [[0.0] * 3]}, r"initial must be 3 finite numbers, got shape \(1, 3\)"),
        ({"initial": [0.0, 0.0, np.nan]}, "initial must be 3 finite numbers"),
    ],
)
def test_what_cannot_be_run_is_named(problems, choices, message, engine):
    run = {"rounds": 3, "num_active": 2} | choices
    algorithm = isfedavg(Memory(), Memory(), num_active=run.pop("num_active"))
    with pytest.raises(ValueError, match=message):
        simulate(problems["squares"], algorithm, engine=engine, **run)


class AgentRecords(ISFedAvg):
    """A method derived from parts that writes its own round."""

    def round(self, state, agents, round_index):
        return state


def test_a_round_of_its_own_counts_more_than_the_parts_it_derives_from(problems):
    method = AgentRecords(step_size=0.01, num_active=2)
    for engine in ("auto", "agents", "objects"):
        history = simulate(problems["squares"], method, rounds=3, engine=engine)
        assert not history.params.any()


@pytest.mark.parametrize("average", [False, "half", "pass"])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "current"])
@pytest.mark.parametrize("num_active", [5, 6])  # of 18: one divides it
def test_passes_and_averages(problems, policy, average, num_active):
    algorithm = isfedavg(
        POLICIES[policy], POLICIES[policy], passes=True, average=average, num_active=num_active
    )
    compare_engines(problems["squares"], algorithm, rounds=23)


@pytest.mark.parametrize("window", ["half", "pass"])
@pytest.mark.parametrize("correction", [None, "drift"])
def test_averages_of_draws(problems, window, correction):
    algorithm = isfedavg(Memory(), Memory(), average=window, correction=correction)
    averaged = compare_engines(problems["logistic"], algorithm, rounds=40)
    last = simulate(problems["logistic"], replace(algorithm, average=False), rounds=40, seed=17)
    assert not np.array_equal(averaged.params[0], last.params[0])


@pytest.mark.parametrize("policy", ["uniform", "memory"])
def test_chunks_and_threads_do_not_matter_in_passes(problems, policy):
    problem = problems["squares"]
    algorithm = isfedavg(POLICIES[policy], POLICIES[policy], passes=True, average=True)
    run: dict[str, Any] = {"rounds": 31, "repetitions": 5, "seed": 6}
    whole = simulate(problem, algorithm, threads=1, **run)
    assert_same(whole, simulate(problem, algorithm, threads=2, **run))

    def start():
        return KernelRun(problem, algorithm, repetitions=5, seed=6, initial=np.zeros(3), threads=1)

    pieces = start()
    blocks = [pieces.advance(size) for size in (1, 7, 2)]
    resumed = start()
    resumed.restore({name: np.array(values) for name, values in pieces.state().items()})
    resumed.round_index = 10
    blocks += [resumed.advance(size) for size in (20, 1)]
    joined = Block(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))
    assert_same(whole, resumed.history(joined))


def test_a_policy_that_asks_everybody_runs_in_passes_over_agents(problems):
    algorithm = isfedavg(Current(), Memory(), passes=True)
    run: dict[str, Any] = {"rounds": 9, "seed": 3}
    agents, objects = (
        simulate(problems["squares"], algorithm, engine=engine, **run)
        for engine in ("agents", "objects")
    )
    assert_same(agents, objects)
    assert np.ptp(agents.agent_prob[0]) > 0.0
