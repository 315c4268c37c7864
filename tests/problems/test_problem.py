"""A problem: its risk, its work per agent, and what it refuses."""

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Logistic, Problem


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    sizes = (4, 1, 3)
    return FederatedData.from_agents(
        [(rng.standard_normal((n, 2)), rng.choice([-1.0, 1.0], n)) for n in sizes]
    )


@pytest.mark.parametrize("loss", [LeastSquares(0.1), Logistic(0.1)])
def test_risk_is_uniform_over_agents_and_over_their_examples(data, loss):
    problem = Problem(data, loss)
    params = np.array([0.3, -1.2])
    local = [np.mean(loss.values(params, *data.agent(k))) for k in range(3)]
    assert problem.risk(params) == pytest.approx(np.mean(local), rel=1e-14)


def test_work_is_one_number_for_all_or_one_per_agent(data):
    problem = Problem(data, LeastSquares(), local_steps=3, batch_size=[2, 1, np.int32(3)])
    assert problem.local_steps.tolist() == [3, 3, 3]
    assert problem.batch_size.tolist() == [2, 1, 3]
    assert problem.local_steps.dtype == problem.batch_size.dtype == np.int64
    assert (problem.num_agents, problem.num_params) == (3, 2)
    with pytest.raises(ValueError, match="read-only"):
        problem.batch_size[0] = 1


@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize(("make", "factor"), [(LeastSquares, 2.0), (Logistic, 0.25)])
def test_largest_curvature_is_that_of_the_longest_example(data, make, factor, ridge):
    longest = max(x @ x for x in data.features)
    expected = factor * longest + 2 * ridge
    assert Problem(data, make(ridge)).largest_curvature == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 of agent 0 must be at least 1"),
        ({"batch_size": [1, 1, -2]}, "batch_size=-2 of agent 2 must be at least 1"),
        ({"batch_size": 1.0}, "batch_size=1.0 must be a whole number"),
        ({"batch_size": [1, 1, 1.5]}, r"batch_size=\[1, 1, 1.5\] must be a whole number"),
        ({"batch_size": True}, "batch_size=True must be a whole number"),
        ({"batch_size": [1, 1]}, r"batch_size has shape \(2,\), expected one per agent \(3\)"),
        ({"batch_size": [[1, 1, 1]]}, r"batch_size has shape \(1, 3\)"),
        ({"local_steps": 0}, "local_steps=0 of agent 0 must be at least 1"),
        ({"local_steps": [1, -1, 1]}, "local_steps=-1 of agent 1 must be at least 1"),
        ({"local_steps": 2.5}, "local_steps=2.5 must be a whole number"),
        ({"local_steps": [1, 1, 1, 1]}, r"local_steps has shape \(4,\)"),
    ],
)
def test_bad_work_is_named(data, work, message):
    with pytest.raises(ValueError, match=message):
        Problem(data, LeastSquares(), **work)


def test_targets_are_checked_by_the_loss():
    data = FederatedData.from_agents([([[1.0], [2.0]], [1.0, 0.5])])
    with pytest.raises(ValueError, match=r"targets\[1\]=0.5 but logistic loss needs -1 or \+1"):
        Problem(data, Logistic())


@pytest.mark.parametrize("what", ["features", "targets"])
def test_numbers_whose_squares_overflow_are_refused(what):
    rows = {"features": np.ones((2, 1)), "targets": np.ones(2), "offsets": [0, 1, 2]}
    rows[what] = rows[what] * 1e80
    with pytest.raises(ValueError, match=rf"{what} beyond 1e\+60 cannot be squared"):
        Problem(FederatedData(**rows), LeastSquares())
