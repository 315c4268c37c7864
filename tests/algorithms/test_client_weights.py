"""`client_weights` of every method that a file can name: uniform unless given, or by size."""

import numpy as np
import pytest
from small_federations import regression

from isfed import simulate
from isfed.experiments.registry import METHODS, method_keys

GIVEN = {"step_size": 0.02, "num_active": 2, "strong": 1.0, "shift": 80.0, "steps": 2, "edges": 2}


def model_of(name, problem, **weights):
    keys = method_keys(name)
    method = METHODS[name](**{k: v for k, v in GIVEN.items() if k in keys}, **weights)
    return simulate(problem, method, rounds=12, seed=4, engine="agents").params[0]


@pytest.mark.parametrize("name", METHODS)
def test_by_size_is_uniform_for_equal_sizes_alone(name):
    same, other = regression(sizes=(5, 5, 5, 5)), regression()
    uniform = model_of(name, same, client_weights="uniform")
    np.testing.assert_array_equal(model_of(name, same), uniform)  # unless given
    np.testing.assert_allclose(model_of(name, same, client_weights="size"), uniform, rtol=1e-11)
    by_size = model_of(name, other, client_weights="size")
    assert np.abs(by_size - model_of(name, other, client_weights="uniform")).max() > 1e-6
