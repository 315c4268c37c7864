"""Cells: repetitions in blocks, kept when they are done, put together again bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from isfed.simulate.simulate_call import simulate
from isfed.studies import make_experiment
from isfed.studies.work_cells import CellStore, cells_of, merged, optimal_probabilities, run_cell


@pytest.fixture
def experiment(small):
    return make_experiment({**small, "repetitions": 7})


def _cells(experiment, store, block, name="ISFedAvg, memory", **changes):
    common = {
        "source": experiment.source, "algorithm": experiment.algorithms[name],
        "rounds": experiment.rounds, "seed": experiment.seed,
    }  # fmt: skip
    repetitions = experiment.repetitions
    return cells_of(name, "algorithm x", repetitions, store, block, **(common | changes))


def _done(cells, store):
    for cell in cells:
        store.keep(cell, run_cell(cell, store, 1))
    return merged([store.result(cell) for cell in cells], rows=20 * 12)


@pytest.mark.parametrize("block", [None, 7, 3, 1])
def test_blocks_together_are_the_whole(experiment, block, tmp_path):
    cells = _cells(experiment, CellStore(), block)
    assert [r for cell in cells for r in cell.repetitions] == list(range(7))
    found = _done(cells, CellStore(tmp_path if block == 3 else None))
    problem = experiment.source.make()
    whole = simulate(
        problem, experiment.algorithms["ISFedAvg, memory"], rounds=60, repetitions=7, seed=5
    )
    names = ("msd", "params", "agent_prob", "gradients", "uploads", "telemetry", "ledgers")
    for name in names:
        np.testing.assert_array_equal(getattr(found.history, name), getattr(whole, name), name)
    optimal = optimal_probabilities(experiment.source)
    assert optimal is not None
    square = (whole.example_prob - optimal[1]) ** 2
    apart = np.sqrt(square.reshape(7, 20, 12).sum(axis=2))
    assert found.example_apart is not None
    np.testing.assert_allclose(found.example_apart, apart, rtol=1e-12)


def test_what_was_begun_stays_as_it_was_cut(experiment, tmp_path):
    store = CellStore(tmp_path)
    cells = _cells(experiment, store, 3)
    assert [len(cell.repetitions) for cell in cells] == [2, 2, 3]
    store.keep(cells[1], run_cell(cells[1], store, 1))
    again = _cells(experiment, store, None)
    assert [cell.repetitions for cell in again] == [range(0, 2), range(2, 4), range(4, 7)]
    assert [store.has(cell) for cell in again] == [False, True, False]
    np.testing.assert_array_equal(
        _done(again, store).history.msd,
        _done(_cells(experiment, CellStore(), None), CellStore()).history.msd,
    )


def test_divergence_cuts_all_blocks_where_the_first_diverged(experiment):
    changes = {"algorithm": make_experiment(
        {"algorithm": [{"kind": "FedAvg", "step_size": 20.0, "num_active": 3}]}
    ).algorithms["FedAvg"]}  # fmt: skip
    one = _done(_cells(experiment, CellStore(), None, **changes), CellStore())
    parts = _done(_cells(experiment, CellStore(), 2, **changes), CellStore())
    assert one.diverged == parts.diverged
    assert "diverged in round" in one.diverged
    np.testing.assert_array_equal(one.history.msd, parts.history.msd)


def test_what_is_kept_is_what_is_read(experiment, tmp_path):
    store, (cell,) = CellStore(tmp_path), _cells(experiment, CellStore(), None)
    store.keep(cell, run_cell(cell, store, 1))
    kept, read = store.result(cell), store.result(cell)  # of the second the file is read
    for name, values in vars(kept.history).items():
        again = getattr(read.history, name)
        if isinstance(values, np.ndarray):
            assert (values.dtype, values.strides) == (again.dtype, again.strides), name
            np.testing.assert_array_equal(values, again)
    for name, values in kept.history.measured.items():
        np.testing.assert_array_equal(values, read.history.measured[name])
    assert (kept.seconds, kept.diverged) == (read.seconds, read.diverged)
    assert not store.kept


def test_names_that_read_the_same_have_files_of_their_own(experiment):
    common = {"source": experiment.source, "algorithm": None, "rounds": 1, "seed": 0}
    names = ("a+b", "a b", "A b", "über", "äöü", "x" * 300)
    files = {cells_of(n, n, 1, CellStore(), None, **common)[0].file for n in names}
    assert len(files) == len(names)
    assert max(map(len, files)) < 100


def test_without_details_the_large_arrays_are_left_out(experiment):
    (cell,) = _cells(experiment, CellStore(), None, details=False)
    store = CellStore()
    arrays = run_cell(cell, store, 1)
    full = run_cell(_cells(experiment, CellStore(), None)[0], store, 1)
    size, whole = (sum(part.nbytes for part in parts.values()) for parts in (arrays, full))
    assert size < 0.3 * whole
    store.keep(cell, arrays)
    assert store.result(cell).history.telemetry.size == 0
