"""One agent's turn, without a cloud."""

import numpy as np
import pytest

from isfed import (
    Agent,
    AgentConfig,
    Current,
    Deville,
    HartleyRao,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Poisson,
    Running,
    Uniform,
    WithReplacement,
)
from isfed.sampling.policies import Table

PARAMS = np.array([0.5, -1.0, 0.25])
NUM_AGENTS, AGENT_PROB, STEP_SIZE, RIDGE = 4, 0.4, 0.05, 0.01


@pytest.fixture
def make_agent():
    """An agent of seven examples, E_k = 3 and B_k = 2 unless told."""

    def make(*, examples=None, agents=None, design=None, work=(3, 2), loss=None, divide=True):
        rng = np.random.default_rng(5)
        x, y = rng.standard_normal((7, 3)), rng.choice([-1.0, 1.0], 7)
        rules = AgentConfig(
            num_agents=NUM_AGENTS,
            step_size=STEP_SIZE,
            examples=examples or Memory(),
            example_design=design or Deville(),
            agents=agents or Memory(),
            divide_by_steps=divide,
        )
        agent = Agent(2, (x, y), loss or LeastSquares(RIDGE), work, rules)
        agent.key = np.uint64(99)
        return agent

    return make


@pytest.fixture
def draws(monkeypatch):
    """What every `Table.draw` returned."""
    record = []
    draw = Table.draw

    def spy(self, num, stream):
        record.append(draw(self, num, stream))
        return record[-1]

    monkeypatch.setattr(Table, "draw", spy)
    return record


def each_gradient(agent, params, batch):
    """Per-example gradients of least squares."""
    x, y = agent.features[batch], agent.targets[batch]
    return -2.0 * x * (y - x @ params)[:, None] + 2.0 * RIDGE * params


def literal_turn(agent, draws, *, divide=True):
    """Algorithm 1's inner loop on the recorded batches: the local model, and the weighted norms."""
    local, norms = PARAMS.copy(), []
    steps = agent.local_steps if divide else 1
    for batch, prob in draws:
        each = each_gradient(agent, local, batch)
        weighted = each / (7 * prob)[:, None]
        local = local - STEP_SIZE / (steps * NUM_AGENTS * AGENT_PROB) * (
            weighted.sum(axis=0) / agent.batch_size
        )
        norms.extend(np.linalg.norm(weighted, axis=1))
    return local, np.array(norms)


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("design", [HartleyRao(), WithReplacement(), Poisson()])
@pytest.mark.parametrize("examples", [Uniform(), Running(), Memory()], ids=lambda p: p.name)
def test_a_turn_is_the_inner_loop_of_algorithm_1(make_agent, draws, examples, design, divide):
    agent = make_agent(examples=examples, design=design, divide=divide)
    for round_index in range(4):
        draws.clear()
        upload = agent.work(PARAMS, AGENT_PROB, round_index)
        local, _ = literal_turn(agent, draws, divide=divide)
        np.testing.assert_allclose(upload.change, local - PARAMS, rtol=0, atol=1e-14)
        assert upload.gradients == sum(len(batch) for batch, _ in draws)


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("design", [Deville(), WithReplacement(), Poisson()])
@pytest.mark.parametrize("examples", [Uniform(), Running()], ids=lambda p: p.name)
def test_the_reported_bound_is_estimated_from_the_turn(make_agent, draws, examples, design, divide):
    """sqrt(sigma^2 + alpha |g|^2) with g = K p_k (w - w_k) / mu, the mean gradient of the turn."""
    agent = make_agent(examples=examples, agents=Running(), design=design, divide=divide)
    upload = agent.work(PARAMS, AGENT_PROB, 0)
    local, norms = literal_turn(agent, draws, divide=divide)
    mean_gradient = NUM_AGENTS * AGENT_PROB * (PARAMS - local) / STEP_SIZE / (1 if divide else 3)
    drawn = 3 * 2  # E_k B_k, also where a design draws fewer or more
    spread = np.sum(norms**2) / drawn if examples.equal else (np.sum(norms) / drawn) ** 2
    literal = np.sqrt(6 / drawn * spread + (3 + 6 / drawn) * (mean_gradient @ mean_gradient))
    assert upload.score == pytest.approx(literal, rel=1e-12)


@pytest.mark.parametrize("agents", [Uniform(), Oracle(), Current()], ids=lambda p: p.name)
def test_nothing_is_reported_to_a_cloud_that_does_not_learn_from_it(make_agent, agents):
    assert make_agent(agents=agents).work(PARAMS, AGENT_PROB, 0).score == 0.0


@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("make", [Oracle, Current, Memory])
def test_score_from_all_examples_is_the_papers(make_agent, make, floor):
    """Eq. agentOptP at any model: sigma^2 with the probabilities that the norms would give."""
    agent = make_agent(examples=make(floor=floor))
    each = each_gradient(agent, PARAMS, np.arange(7))
    norms, mean = np.linalg.norm(each, axis=1), each.mean(axis=0)
    prob = (1 - floor) * norms / norms.sum() + floor / 7
    variance = 6 / (3 * 2 * 7**2) * np.sum(norms**2 / prob)
    literal = np.sqrt(variance + (3 + 6 / (3 * 2)) * (mean @ mean))
    assert agent.score_at(PARAMS) == pytest.approx(literal, rel=1e-13)
    if floor == 0.0:  # at its optimum sigma^2 is 6 / (E B) times the squared mean norm
        assert variance == pytest.approx(6 / (3 * 2) * norms.mean() ** 2, rel=1e-13)


def test_norms_and_gradient_of_all_examples(make_agent):
    agent = make_agent()
    each = each_gradient(agent, PARAMS, np.arange(7))
    norms, gradient = agent.norms_at(PARAMS)
    np.testing.assert_allclose(norms, np.linalg.norm(each, axis=1), rtol=1e-13)
    np.testing.assert_allclose(gradient, each.mean(axis=0), rtol=1e-13)


def test_current_pays_for_a_look_at_every_example(make_agent):
    assert make_agent(examples=Current()).work(PARAMS, AGENT_PROB, 0).gradients == 3 * 2 + 7


def test_a_turn_leaves_the_clouds_model_alone(make_agent):
    params = PARAMS.copy()
    upload = make_agent().work(params, AGENT_PROB, 0)
    np.testing.assert_array_equal(params, PARAMS)
    assert np.linalg.norm(upload.change) > 0.0


def test_draws_depend_on_key_round_and_agent_alone(make_agent, draws):
    def batches(*, key=99, index=2, round_index=0):
        draws.clear()
        agent = make_agent(work=(6, 2))
        agent.key, agent.index = np.uint64(key), index
        agent.work(PARAMS, AGENT_PROB, round_index)
        return np.concatenate([batch for batch, _ in draws]).tolist()

    assert batches() == batches()
    for other in ({"key": 98}, {"index": 3}, {"round_index": 1}):
        assert batches() != batches(**other)


def test_drift_moves_the_targets_by_the_features(make_agent):
    shift = np.array([0.3, 0.1, -2.0])
    drifted, moved = make_agent(), make_agent()
    moved.targets = moved.targets + moved.features @ shift
    got = drifted.work(PARAMS, AGENT_PROB, 0, shift=shift)
    expected = moved.work(PARAMS, AGENT_PROB, 0)
    np.testing.assert_allclose(got.change, expected.change, rtol=1e-12)
    assert got.score == pytest.approx(expected.score, rel=1e-12)


class SlowLogistic:
    """A loss of one's own: the matrix of per-example gradients, in plain NumPy."""

    def gradient(self, params, x, y, weight):
        each = -(y / (1.0 + np.exp(y * (x @ params))))[:, None] * x + 2.0 * RIDGE * params
        return weight @ each / len(y), np.linalg.norm(each, axis=1)

    def num_params(self, num_features):
        return num_features

    def check_targets(self, targets):
        pass


@pytest.mark.parametrize("examples", [Current(), Memory()], ids=lambda p: p.name)
def test_any_object_with_a_gradient_is_a_loss(make_agent, examples):
    mine = make_agent(examples=examples, loss=SlowLogistic())
    ours = make_agent(examples=examples, loss=Logistic(RIDGE))
    for round_index in range(3):
        one, other = (agent.work(PARAMS, AGENT_PROB, round_index) for agent in (mine, ours))
        np.testing.assert_allclose(one.change, other.change, rtol=1e-12)
        assert one.score == pytest.approx(other.score, rel=1e-12)


@pytest.mark.parametrize("examples", [Current(), Running(), Memory()], ids=lambda p: p.name)
def test_an_agent_without_gradients_draws_uniformly(make_agent, examples):
    agent = make_agent(examples=examples, loss=LeastSquares(0.0))
    agent.features, agent.targets = np.zeros((7, 3)), np.zeros(7)
    for round_index in range(5):
        upload = agent.work(PARAMS, AGENT_PROB, round_index)
        np.testing.assert_array_equal(upload.change, np.zeros(3))
        assert upload.score == 0.0
    np.testing.assert_allclose(agent.table.probabilities(), np.full(7, 1 / 7), rtol=1e-15)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ((0, 2), "local_steps=0 must be a whole number >= 1"),
        ((1, 0), "batch_size=0 must be a whole number >= 1"),
        ((1, 8), "batch_size=8 of agent 2 exceeds its num_examples=7"),
    ],
)
def test_work_that_cannot_be_done_is_named(make_agent, work, message):
    with pytest.raises(ValueError, match=message):
        make_agent(work=work)


def test_rows_and_targets_must_match(make_agent):
    agent = make_agent()
    with pytest.raises(ValueError, match="7 rows of features but 6 targets"):
        Agent(0, (agent.features, agent.targets[:6]), agent.loss, (1, 1), agent.rules)


def test_a_batch_of_no_examples_is_no_step(make_agent, monkeypatch):
    """Poisson may draw nobody."""
    agent = make_agent(examples=Uniform(), design=Poisson())
    monkeypatch.setattr(Table, "draw", lambda *_: (np.empty(0, np.int64), np.empty(0)))
    upload = agent.work(PARAMS, AGENT_PROB, 0)
    np.testing.assert_array_equal(upload.change, np.zeros(3))
    assert (upload.gradients, upload.score) == (0, 0.0)
