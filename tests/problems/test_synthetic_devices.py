"""synthetic(alpha, beta): the shape, the sizes, and what alpha and beta do."""

import numpy as np
import pytest

from isfed import Synthetic


def test_the_shape_is_that_of_the_paper():
    problem = Synthetic().make(seed=0)
    assert (problem.num_agents, problem.data.num_features, problem.num_params) == (30, 61, 610)
    assert problem.data.num_examples.min() >= 50
    assert (problem.data.features[:, -1] == 1.0).all()
    assert set(problem.data.targets) == set(range(10))
    assert problem.name == "synthetic(1,1)"


def test_sizes_are_log_normal():
    sizes = Synthetic(num_agents=1500, num_features=1, num_classes=2).make().data.num_examples
    logs = np.log(sizes - 49.5)  # the median is exp(4), the quartiles 0.6745 * 2 from it
    quartiles = np.quantile(logs, [0.25, 0.5, 0.75])
    stderr = 2 * 1.36 / np.sqrt(1500)  # of a quartile of a normal variable
    np.testing.assert_allclose(
        quartiles, 4.0 + 2.0 * 0.6745 * np.array([-1, 0, 1]), atol=4 * stderr
    )


def test_features_have_their_means_and_variances():
    """Within a device the variance of feature j is j^-1.2, whatever alpha and beta are."""
    problem = Synthetic(num_agents=40, num_features=5, num_classes=2).make(seed=3)
    squares, count, means = np.zeros(5), 0, []
    for agent in range(40):
        x = problem.data.agent(agent)[0][:, :5]
        squares += ((x - x.mean(axis=0)) ** 2).sum(axis=0)
        count += len(x) - 1
        means.append(x.mean(axis=0))
    expected = np.arange(1, 6) ** -1.2
    np.testing.assert_allclose(squares / count, expected, atol=5 * np.sqrt(2 / count))
    # v_kj = B_k + N(0, 1): variance 2 over devices, covariance 1 between features of a device
    spread = np.cov(np.array(means).T)
    assert 0.9 < np.diag(spread).mean() < 3.6


def test_devices_alike_without_beta_have_means_of_variance_one():
    wide, narrow = (
        Synthetic(beta=b, num_agents=200, num_features=3, num_classes=2, most_examples=60).make()
        for b in (3.0, 0.0)
    )
    between = [
        np.var([p.data.agent(k)[0][:, 0].mean() for k in range(200)]) for p in (wide, narrow)
    ]
    assert abs(between[1] - 1.0) < 4 * np.sqrt(2 / 200)
    assert abs(between[0] - 10.0) < 4 * 10 * np.sqrt(2 / 200)


def test_labels_are_the_largest_score_of_a_linear_model():
    """Softmax regression without a ridge can label one device's own data almost perfectly."""
    recipe = Synthetic(num_agents=1, num_features=3, num_classes=3, ridge=1e-6)
    problem = recipe.make(seed=14)  # a device that has all three classes
    x, y = problem.data.agent(0)
    scores = x @ problem.local_optimum(0).reshape(3, 4).T
    assert (np.argmax(scores, axis=1) == y).mean() > 0.97


def test_a_seed_is_a_problem():
    one, same, other = (Synthetic(num_features=4).make(seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.data.features, same.data.features)
    assert one.data.features.shape != other.data.features.shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"num_classes": 1}, "num_classes=1"),
        ({"most_examples": 5}, "most_examples=5"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        Synthetic(**options)
