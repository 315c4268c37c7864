"""`client_weights` of every method that a file can name: uniform unless given, or by size."""

import numpy as np
import pytest
from small_federations import regression

from isfed import simulate
from isfed.studies.name_registry import METHODS, method_keys

GIVEN = {
    "step_size": 0.02, "num_active": 2, "strong": 1.0, "shift": 80.0, "steps": 2, "edges": 2,
    "warm_up": 2, "output_layer": (1, 2),
}  # fmt: skip
NEVER = {"Oort", "HiCSFL"}  # they choose without c_k and take the plain mean of those heard


def model_of(name, problem, **options):
    keys = method_keys(name)
    method = METHODS[name](**{k: v for k, v in GIVEN.items() if k in keys}, **options)
    return simulate(problem, method, rounds=12, seed=4, engine="agents").params[0]


@pytest.mark.parametrize("name", METHODS)
def test_by_size_is_uniform_for_equal_sizes_alone(name):
    same, other, given = regression(sizes=(5, 5, 5, 5)), regression(), {}
    uniform = model_of(name, same, client_weights="uniform")
    np.testing.assert_array_equal(model_of(name, same), uniform)  # unless given
    np.testing.assert_allclose(model_of(name, same, client_weights="size"), uniform, rtol=1e-11)
    if name == "PowerOfChoice":  # its candidates are drawn by size, and sizes count once
        given = {"candidates_by": "uniform"}
        np.testing.assert_array_equal(
            model_of(name, other, client_weights="size"), model_of(name, other)
        )
    by_size = model_of(name, other, client_weights="size", **given)
    differ = np.abs(by_size - model_of(name, other, client_weights="uniform", **given)).max()
    assert differ == 0.0 if name in NEVER else differ > 1e-6
