"""Federated data: ragged, flat, immutable, checked once."""

import warnings

import numpy as np
import pytest

from isfed import FederatedData, Huber, LeastSquares, Problem

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6.0)
OFFSETS = [0, 3, 4, 6]


def test_agents_are_slices_of_one_flat_block():
    data = FederatedData(X, Y, np.array(OFFSETS))
    assert (data.num_agents, data.num_features) == (3, 2)
    assert data.num_examples.tolist() == [3, 1, 2]
    for agent, (first, last) in enumerate([(0, 3), (3, 4), (4, 6)]):
        x, y = data.agent(agent)
        np.testing.assert_array_equal(x, X[first:last])
        np.testing.assert_array_equal(y, Y[first:last])
        assert np.shares_memory(x, data.features)


def test_from_agents_equals_the_flat_form():
    flat = FederatedData(X, Y, np.array(OFFSETS))
    again = FederatedData.from_agents([flat.agent(k) for k in range(3)])
    for name in ("features", "targets", "offsets"):
        np.testing.assert_array_equal(getattr(flat, name), getattr(again, name))


def test_row_weights_are_those_of_the_risk():
    data = FederatedData(X, Y, np.array(OFFSETS))
    literal = [1 / (3 * 3)] * 3 + [1 / (3 * 1)] + [1 / (3 * 2)] * 2  # 1 / (K N_k)
    np.testing.assert_allclose(data.row_weights(), literal, rtol=1e-15)


def test_rows_keep_their_type_in_c_order():
    data = FederatedData(np.asfortranarray(X, np.float32), Y.astype(">i4"), np.array(OFFSETS))
    assert data.features.dtype == np.float32
    assert data.features.flags.c_contiguous
    assert data.targets.dtype == np.int32
    assert data.targets.dtype.isnative  # other libraries know no other byte order
    np.testing.assert_array_equal(data.targets, Y)


@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 1, 4, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, bool])
def test_a_row_may_have_any_shape_and_type(shape, dtype):
    x = (np.arange(np.prod(shape)) % 2).astype(dtype).reshape(shape)
    data = FederatedData(x, Y.astype(np.int64)[:, None], np.array(OFFSETS))
    assert (data.features.dtype, data.features.shape) == (dtype, shape)
    assert data.num_features == np.prod(shape[1:])
    rows, targets = data.agent(2)
    np.testing.assert_array_equal(rows, x[4:])
    assert targets.shape == (2, 1)
    again = FederatedData.from_agents([data.agent(k) for k in range(3)])
    np.testing.assert_array_equal(again.features, x)
    assert again.features.dtype == dtype


def test_linear_losses_take_matrices_of_float64():
    offsets = np.array(OFFSETS)
    exact = FederatedData(X, Y, offsets)
    assert Problem(exact, LeastSquares()).data is exact  # nothing to convert, nothing copied
    narrow = Problem(FederatedData(X.astype(np.int32), Y.astype(np.float32), offsets), Huber())
    assert narrow.data.features.dtype == narrow.data.targets.dtype == np.float64
    np.testing.assert_array_equal(narrow.data.features, X)
    with pytest.raises(
        ValueError, match=r"LeastSquares needs features that are a matrix, got shap"
    ):
        Problem(FederatedData(X[:, :, None], Y, offsets), LeastSquares())
    with pytest.raises(ValueError, match=r"Huber needs one target per example.*\(6, 1\)"):
        Problem(FederatedData(X, Y[:, None], offsets), Huber())


def test_data_cannot_change_after_construction():
    x, y, offsets = X.copy(), Y.copy(), np.array(OFFSETS)
    data = FederatedData(x, y, offsets)
    x[:], y[:], offsets[:] = -1.0, -1.0, 0  # what it was made from is no longer tied to it
    np.testing.assert_array_equal(data.features, X)
    np.testing.assert_array_equal(data.targets, Y)
    for array in (data.features, data.targets, data.offsets, *data.agent(0)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_read_only_arrays_are_not_copied():
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    data = FederatedData(x, y, np.array(OFFSETS))
    assert data.features is x
    assert data.targets is y


def test_finite_numbers_whose_sum_overflows_are_fine():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedData.from_agents([([[1e308], [1e308]], [1.0, 1.0])])


def spoiled(array, value):
    copy = array.copy()
    copy.flat[3] = value
    return copy


@pytest.mark.parametrize(
    ("features", "targets", "offsets", "message"),
    [
        (spoiled(X, np.nan), Y, OFFSETS, r"features\[1, 1\] is nan, not finite"),
        (spoiled(X, -np.inf), Y, OFFSETS, r"features\[1, 1\] is -inf, not finite"),
        (X, spoiled(Y, np.inf), OFFSETS, r"targets\[3\] is inf, not finite"),
        (X, Y, [0, 3, 3, 6], r"agent 1 has no examples \(1 such\)"),
        (X, Y, [0, 4, 2, 6], r"agent 1 has no examples"),
        (X, Y, [0, 3, 5], "offsets must lead from 0 to 6"),
        (X, Y, [1, 6], "offsets must lead from 0 to 6"),
        (X, Y, [6], "offsets must lead from 0 to 6"),
        (X, Y, [0.0, 2.5, 6.0], r"offsets=\[0.0, 2.5, 6.0\] must be whole numbers"),
        (X, Y[:5], OFFSETS, r"6 rows of features but targets of \(5,\)"),
        (X, np.float64(1), OFFSETS, r"6 rows of features but targets of \(\)"),
        (X[:, :0], Y, OFFSETS, r"features must have one row per example, got shape \(6, 0\)"),
        (X.astype(str), Y, OFFSETS, "features must be numbers, got an array of <U"),
        (X, Y.astype(object), OFFSETS, "targets must be numbers, got an array of object"),
    ],
)
def test_bad_data_is_named(features, targets, offsets, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one line: no warning of NumPy's before it
        with pytest.raises(ValueError, match=message):
            FederatedData(features, targets, offsets)


def test_opposite_infinities_are_found_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"targets\[0\] is inf"):
            FederatedData.from_agents([(X[:2], [np.inf, -np.inf])])


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([], "at least one agent"),
        ([(X, Y), (X, Y[:5])], r"agent 1: features \(6, 2\) and targets \(5,\)"),
        ([(X, Y), (X[:, :1], Y)], r"agent 1 has features of shape \(1,\) per .*, agent 0 has \(2,"),
        ([(X, Y), (X, X)], r"agent 1 has targets of shape \(2,\) per example, agent 0 has \(\)"),
        ([(X, Y), (X[:0], Y[:0])], "agent 1 has no examples"),
        ([(1.0, 2.0)], r"agent 0: features \(\) and targets \(\)"),
    ],
)
def test_bad_agents_are_named(agents, message):
    with pytest.raises(ValueError, match=message):
        FederatedData.from_agents(agents)
