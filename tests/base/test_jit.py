"""Compiled functions."""

from __future__ import annotations

import numpy as np

from isfed.base.jit import TypedOnce, compiled


@compiled
def _weighed(scale, rows, out):
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[i, j] = scale[0] * rows[i, j]


def test_kinds_of_arrays_are_told_apart():
    typed = TypedOnce(_weighed)
    rows = np.arange(12.0).reshape(3, 4)
    frozen = rows.copy()
    frozen.flags.writeable = False
    for given in (rows, rows[::2], np.asfortranarray(rows), frozen, rows.astype(np.int32), rows):
        out = np.empty(given.shape)
        typed((given,), (2.0,), given, out)
        np.testing.assert_array_equal(out, 2.0 * given)
    assert len(typed.entries) == 5
