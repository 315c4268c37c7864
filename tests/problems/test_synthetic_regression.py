"""The paper's regression and its presets."""

import numpy as np
import pytest

from isfed import EQUAL, OUTLIERS, PAPER, Regression
from isfed.problems import PRESETS


def residual_variances(problem):
    """The variance of every agent's noise, from its own least-squares fit."""
    variances = []
    for k in range(problem.num_agents):
        x, y = problem.data.agent(k)
        residual = y - x @ problem.local_optimum(k)
        variances.append(residual @ residual / (len(y) - x.shape[1]))
    return np.array(variances)


@pytest.mark.parametrize("recipe", PRESETS.values(), ids=PRESETS.keys())
def test_presets_have_the_papers_sizes(recipe):
    problem = recipe.make()
    assert (problem.num_agents, problem.num_params) == (300, 2)
    assert (problem.data.num_examples == 100).all()
    assert problem.loss.ridge == 0.001
    assert set(problem.local_steps) == set(range(1, 6))
    assert set(problem.batch_size) == set(range(1, 11))
    assert problem.name == recipe.name


def test_a_seed_gives_the_same_problem_and_another_seed_another():
    one, same, other = (PAPER.make(seed=s) for s in (1, 1, 2))
    for name in ("features", "targets"):
        np.testing.assert_array_equal(getattr(one.data, name), getattr(same.data, name))
        assert not np.array_equal(getattr(one.data, name), getattr(other.data, name))
    np.testing.assert_array_equal(one.local_steps, same.local_steps)
    assert not np.array_equal(one.batch_size, other.batch_size)


def test_paper_noise_is_log_uniform_in_its_range():
    logs = np.log10(residual_variances(PAPER.make()))
    # Uniform on [-3, 0]: mean -1.5, standard deviation sqrt(9 / 12); the variance of one agent is
    # itself estimated from 98 degrees of freedom, 0.06 in the logarithm.
    assert abs(logs.mean() + 1.5) < 4 * np.sqrt(9 / 12 / 300)
    assert logs.min() > -3 - 4 * 0.07
    assert logs.max() < 4 * 0.07


def test_paper_features_have_variances_of_their_own():
    problem = PAPER.make()
    spread = problem.data.features.reshape(300, 100, 2).var(axis=1)
    assert abs(spread.mean() - 1.25) < 4 * np.sqrt((1.5**2 / 12 + 2 * 1.4**2 / 100) / 600)
    assert spread.std() > 0.3  # not one for all; 1.5 / sqrt(12) = 0.43 without estimation noise


def test_equal_agents_are_equal():
    variances = residual_variances(EQUAL.make())
    # 29 400 degrees of freedom in all
    assert variances.mean() == pytest.approx(0.01, rel=4 * np.sqrt(2 / 29_400))
    assert variances.max() < 3 * variances.min()


def test_one_percent_are_outliers_with_a_hundred_times_the_deviation():
    variances = np.sort(residual_variances(OUTLIERS.make()))
    error = np.sqrt(2 / 98)  # relative, of one agent's variance
    np.testing.assert_allclose(variances[:-3], 0.01, rtol=5 * error)
    np.testing.assert_allclose(variances[-3:], 0.01 * 100**2, rtol=5 * error)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.5, 20), (1.0, 40)])
def test_share_of_noisy_agents(share, expected):
    recipe = EQUAL.replace(num_agents=40, noisy_share=share, noise_ratio=100.0)
    assert np.count_nonzero(residual_variances(recipe.make()) > 1.0) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_agents": 0}, "num_agents=0 must be a whole number >= 1"),
        ({"num_examples": 2**63}, "num_examples=9223372036854775808 must be .* at most"),
        ({"num_agents": 10**400}, r"num_agents=10+\.\.\. must be .* at most"),
        ({"num_agents": 2**40, "num_examples": 2**40}, "make more numbers than any memory holds"),
        ({"num_examples": -1}, "num_examples=-1 must be a whole number >= 1"),
        ({"num_features": 0}, "num_features=0 must be a whole number >= 1"),
        ({"feature_variance": (0.0, 1.0)}, r"feature_variance=\(0.0, 1.0\) must be a range"),
        ({"noise_variance": (2.0, 1.0)}, r"noise_variance=\(2.0, 1.0\) must be a range"),
        ({"feature_variance": (0.5, 1e300)}, r"feature_variance=\(0.5, 1e\+300\) must be"),
        ({"feature_variance": (5e-324, 1e308)}, r"feature_variance=\(5e-324, 1e\+308\) must be"),
        ({"noise_variance": (1.0, 1e200)}, r"noise_variance=\(1.0, 1e\+200\) must be"),
        ({"noise_ratio": 1e300}, "noise_ratio=1e\\+300 must be positive, at most"),
        ({"noise_variance": (1.0, np.inf)}, "must be a range of positive numbers"),
        ({"local_steps": (0, 3)}, r"local_steps=\(0, 3\) must be a range of whole numbers"),
        ({"batch_size": (4, 3)}, r"batch_size=\(4, 3\) must be a range of whole numbers"),
        ({"noisy_share": 1.5}, "noisy_share=1.5 must be between 0 and 1"),
        ({"noise_ratio": 0.0}, "noise_ratio=0.0 must be positive"),
        ({"ridge": -1.0}, "ridge=-1.0 must be a finite number >= 0"),
    ],
)
def test_bad_recipes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Regression(**changes).make()


def test_the_largest_recipe_that_is_taken_can_be_made():
    """So that whatever is too large is refused by its own name."""
    largest = Regression(
        num_agents=4, feature_variance=(1e60, 1e60), noise_variance=(1e60, 1e60), noisy_share=1.0,
        noise_ratio=1e20,
    )  # fmt: skip
    problem = largest.make()
    assert np.isfinite(problem.data.targets).all()
    assert np.isfinite(problem.optimum).all()
