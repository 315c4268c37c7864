"""ISFedAvg: what it becomes in special cases, and what it refuses."""

from typing import Any

import numpy as np
import pytest

from isfed import (
    Agent,
    Current,
    Deville,
    DynamicFedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Poisson,
    Problem,
    Running,
    Sampford,
    Score,
    Stream,
    Systematic,
    Uniform,
    simulate,
)

POLICIES = [Uniform(), Oracle(), Current(), Running(), Memory(), Memory(score=Score.SECOND_MOMENT)]
FIXED_SIZE = [Systematic(), Deville(), HartleyRao(), Sampford()]
NAMES = ("msd", "params", "agent_prob", "example_prob", "gradients", "uploads")

each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.name}-{p.score.name}")


@pytest.fixture
def make_problem():
    """Five agents of 2 to 6 examples."""

    def make(*, loss=None, full_batch=False, **work):
        rng = np.random.default_rng(11)
        agents = []
        for n in (4, 2, 6, 3, 5):
            x = rng.standard_normal((n, 2))
            agents.append((x, np.sign(x @ [2.0, -1.0] + rng.standard_normal(n))))
        data = FederatedData.from_agents(agents)
        if full_batch:
            work["batch_size"] = data.num_examples
        return Problem(data, loss or LeastSquares(0.05), **work)

    return make


def assert_same(one, other):
    for name in NAMES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_uniform_is_dynamic_fedavg(make_problem):
    problem = make_problem(local_steps=[1, 3, 2, 1, 4], batch_size=2)
    uniform = ISFedAvg(
        step_size=0.02,
        num_active=2,
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=HartleyRao(),
    )
    dynamic = DynamicFedAvg(step_size=0.02, num_active=2)
    one, other = (
        simulate(problem, algorithm, rounds=40, repetitions=3, seed=5)
        for algorithm in (uniform, dynamic)
    )
    assert_same(one, other)


@each_policy
@pytest.mark.parametrize("design", FIXED_SIZE, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("loss", [LeastSquares(0.05), Logistic(0.05)], ids=["squares", "logistic"])
def test_everybody_with_all_examples_and_one_step_is_gradient_descent(
    make_problem, policy, design, loss
):
    """L = K, B_k = N_k, E_k = 1: whatever the scores say, all are certain."""
    problem = make_problem(loss=loss, full_batch=True)
    algorithm = ISFedAvg(
        step_size=0.1,
        num_active=5,
        agents=policy,
        examples=policy,
        agent_design=design,
        example_design=design,
    )
    params = np.array([0.7, 0.1])
    history = simulate(problem, algorithm, rounds=10, initial=params)
    distances = []
    for _ in range(10):
        gradients = [
            loss.gradient(params, *problem.data.agent(k), np.ones(problem.data.num_examples[k]))[0]
            for k in range(5)
        ]
        params = params - 0.1 * np.mean(gradients, axis=0)
        distances.append(np.sum((params - problem.optimum) ** 2))
    np.testing.assert_allclose(history.params[0], params, rtol=0, atol=1e-13)
    np.testing.assert_allclose(history.msd[0], distances, rtol=1e-11)


@pytest.mark.parametrize("design", FIXED_SIZE, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("outlier", [1.0, 100.0])  # the second is certain in every batch of three
def test_zero_variance_where_all_gradients_have_one_sign(design, batch_size, outlier):
    """Scalar model, the agent's targets all above: a batch gives its full gradient exactly."""
    x = np.array([[0.5], [1.0], [2.0], [0.3], [1.5]])
    above, below = np.array([3.0, 2.0, 9.0 * outlier, 4.0, 5.0]), np.array([-9.0 * outlier] * 5)
    problem = Problem(
        FederatedData.from_agents([(x, above), (x, below)]), LeastSquares(), batch_size=batch_size
    )
    each = -2.0 * x[:, 0] * (above - x[:, 0] * problem.optimum[0])
    assert (each < 0).all()
    algorithm = ISFedAvg(
        step_size=0.01, num_active=1, agents=Uniform(), examples=Oracle(), example_design=design
    )
    agent = Agent(0, problem.data.agent(0), problem.loss, (1, batch_size), algorithm.rules(2))
    agent.table.replace(agent.norms_at(problem.optimum)[0])
    batches = set()
    for round_index in range(30):
        upload = agent.work(problem.optimum, 0.5, round_index)
        np.testing.assert_allclose(upload.change, [-0.01 * each.mean()], rtol=1e-12)
        batches.add(tuple(agent.table.draw(batch_size, Stream(round_index))[0]))
    assert len(batches) > 1  # not one and the same batch


def test_with_one_agent_and_one_example_memory_learns_and_running_cannot(make_problem):
    """B_k = 1 makes eq. approxPn the identity, and so does L = 1 eq. approxPk."""
    problem = make_problem()
    ends = {}
    for policy in (Running(), Memory()):
        algorithm = ISFedAvg(step_size=0.02, num_active=1, agents=policy, examples=policy)
        ends[policy.name] = simulate(problem, algorithm, rounds=100)
    sizes = problem.data.num_examples
    uniform = np.repeat(1 / sizes, sizes)
    np.testing.assert_allclose(ends["running"].agent_prob[0], np.full(5, 0.2), rtol=1e-14)
    np.testing.assert_allclose(ends["running"].example_prob[0], uniform, rtol=1e-14)
    assert np.ptp(ends["memory"].agent_prob[0]) > 0.02
    assert np.abs(ends["memory"].example_prob[0] - uniform).max() > 0.02


def bound(problem, agent_prob, example_prob):
    """sigma_s^2 of Lemma gradNoise (without replacement) at any probabilities."""
    total, offsets = 0.0, problem.data.offsets
    for k in range(problem.num_agents):
        x, y = problem.data.agent(k)
        gradient, norms = problem.loss.gradient(problem.optimum, x, y, np.ones(len(y)))
        p_n = example_prob[offsets[k] : offsets[k + 1]]
        work = problem.local_steps[k] * problem.batch_size[k]
        data = 6 / (work * len(y) ** 2) * np.sum(norms**2 / p_n)
        model = (3 + 6 / work) * (gradient @ gradient)
        total += (data + model) / agent_prob[k] / problem.num_agents**2
    return total


def test_the_oracle_minimises_the_papers_bound(make_problem):
    problem = make_problem(local_steps=[1, 3, 2, 1, 4], batch_size=[1, 2, 1, 3, 2])
    oracle = ISFedAvg(step_size=0.01, num_active=1, agents=Oracle(), examples=Oracle())
    history = simulate(problem, oracle, rounds=1)
    agent_prob, example_prob = history.agent_prob[0], history.example_prob[0]
    least = bound(problem, agent_prob, example_prob)
    rng = np.random.default_rng(0)
    sums = problem.data.offsets[:-1]
    for scale in np.repeat([1e-3, 0.1, 1.0], 50):
        agents = agent_prob * np.exp(scale * rng.standard_normal(5))
        examples = example_prob * np.exp(scale * rng.standard_normal(20))
        examples /= np.repeat(np.add.reduceat(examples, sums), problem.data.num_examples)
        assert bound(problem, agents / agents.sum(), examples) > least


@pytest.mark.parametrize("policy", [Oracle(), Current()], ids=lambda p: p.name)
@pytest.mark.parametrize("design", [Sampford(), Poisson()], ids=["Sampford", "Poisson"])
def test_designs_of_the_objects_engine_are_unbiased_too(make_problem, policy, design):
    """The mean of many one-round models is a gradient step, within four standard errors."""
    problem = make_problem(batch_size=2)
    algorithm = ISFedAvg(
        step_size=0.1,
        num_active=2,
        agents=policy,
        examples=policy,
        agent_design=design,
        example_design=design,
    )
    params = np.array([0.7, 0.1])
    history = simulate(problem, algorithm, rounds=1, repetitions=500, initial=params)
    gradients = [
        problem.loss.gradient(params, *problem.data.agent(k), np.ones(problem.data.num_examples[k]))
        for k in range(5)
    ]
    step = params - 0.1 * np.mean([gradient for gradient, _ in gradients], axis=0)
    error = history.params.std(axis=0, ddof=1) / np.sqrt(500)
    assert (np.abs(history.params.mean(axis=0) - step) < 4 * error).all()


@pytest.mark.parametrize("policy", [Running(), Memory()], ids=lambda p: p.name)
@pytest.mark.parametrize("design", [Sampford(), Poisson()], ids=["Sampford", "Poisson"])
def test_policies_learn_under_the_designs_of_the_objects_engine(make_problem, policy, design):
    algorithm = ISFedAvg(
        step_size=0.05,
        num_active=2,
        agents=policy,
        examples=policy,
        agent_design=design,
        example_design=design,
    )
    history = simulate(make_problem(batch_size=2), algorithm, rounds=200)
    assert history.steady().msd < 0.1 * history.msd[0, 0]
    assert np.ptp(history.agent_prob) > 0.02


@pytest.mark.parametrize("engine", ["kernel", "objects"])
@each_policy
def test_an_agent_without_gradients_falls_back_to_uniform(policy, engine):
    """Agent 1 has nothing to say about any model: its examples are drawn uniformly."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((4, 2)), rng.standard_normal(4)
    data = FederatedData.from_agents([(x, y), (np.zeros((4, 2)), np.zeros(4)), (-x, y)])
    problem = Problem(data, LeastSquares(), local_steps=2, batch_size=2)
    algorithm = ISFedAvg(step_size=0.02, num_active=2, agents=policy, examples=policy)
    history = simulate(problem, algorithm, rounds=60, repetitions=2, engine=engine)
    assert np.isfinite(history.msd).all()
    np.testing.assert_allclose(history.example_prob[:, 4:8], 0.25, rtol=1e-14)
    if not policy.equal:
        np.testing.assert_allclose(history.agent_prob[:, 1], policy.floor / 3, atol=1e-14)


def test_names_say_what_is_combined():
    make = {"step_size": 0.1, "num_active": 1}
    assert ISFedAvg(**make).name == "ISFedAvg, memory"
    assert ISFedAvg(**make, agents=Oracle()).name == "ISFedAvg, oracle agents, memory examples"
    assert ISFedAvg(**make, label="mine").name == "mine"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"step_size": 0.0}, "step_size=0.0 must be a positive number"),
        ({"step_size": -0.1}, "step_size=-0.1 must be a positive number"),
        ({"step_size": np.nan}, "step_size=nan must be a positive number"),
        ({"step_size": np.inf}, "step_size=inf must be a positive number"),
        ({"step_size": "big"}, "step_size='big' must be a positive number"),
        ({"num_active": 0}, "num_active=0 must be a whole number >= 1"),
        ({"num_active": -3}, "num_active=-3 must be a whole number >= 1"),
        ({"num_active": 2.0}, "num_active=2.0 must be a whole number"),
        ({"num_active": True}, "num_active=True must be a whole number"),
        ({"drift": -1.0}, "drift=-1.0 must be a number >= 0"),
        ({"drift": np.nan}, "drift=nan must be a number >= 0"),
    ],
)
def test_bad_numbers_are_named(choices, message):
    with pytest.raises(ValueError, match=message):
        ISFedAvg(**({"step_size": 0.1, "num_active": 2} | choices))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"agents": "memory"}, r"agents='memory' must be a policy, e.g. Memory\(\)"),
        ({"examples": Memory}, "examples=.* must be a policy"),
        ({"agent_design": "deville"}, r"agent_design='deville' must be a design, e.g. Deville\(\)"),
        ({"example_design": Deville}, "example_design=.* must be a design"),
    ],
)
def test_what_is_no_policy_or_design_is_named(choices, message):
    with pytest.raises(TypeError, match=message):
        ISFedAvg(step_size=0.1, num_active=2, **choices)


def test_numpy_integers_are_whole_numbers(make_problem):
    two: Any = np.int64(2)
    one, other = (ISFedAvg(step_size=0.1, num_active=n) for n in (2, two))
    problem = make_problem()
    assert_same(simulate(problem, one, rounds=5), simulate(problem, other, rounds=5))


def test_only_least_squares_drifts(make_problem):
    algorithm = ISFedAvg(step_size=0.1, num_active=2, drift=0.1)
    with pytest.raises(ValueError, match="a drifting optimum needs LeastSquares, not Logistic"):
        simulate(make_problem(loss=Logistic(0.1)), algorithm, rounds=5)
