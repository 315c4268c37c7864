"""Work in progress that was damaged or changed is refused by name, and never continued."""

import numpy as np
import pytest

from isfed.base.atomic_files import CHECKSUM, _checksum, load_arrays, save_arrays
from isfed.simulate import run_driver
from isfed.studies import Workers, make_experiment, run_experiment
from isfed.studies.results_folder import StoreError
from isfed.studies.results_reader import load_results

OFTEN = Workers(chunk_seconds=1e-6, threads=1)


@pytest.fixture(autouse=True)
def _checkpoint_after_every_chunk(monkeypatch):
    monkeypatch.setattr(run_driver, "LEAST_BETWEEN", 0.0)
    monkeypatch.setattr(run_driver, "MOST_SHARE", 1e9)


class Stop:
    """A progress that is interrupted after some chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def begin(self, name, work, done):
        pass

    def advance(self, work):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def interrupted(small, folder, engine="auto"):
    """An experiment that was stopped, and its checkpoint."""
    experiment = make_experiment({**small, "engine": engine})
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, folder, progress=Stop(3), workers=OFTEN)
    (path,) = folder.glob("cells/*/*.checkpoint.npz")
    return experiment, path


def changed(arrays, name, value):
    return {**arrays, name: value}


DAMAGE = {
    "another shape": lambda a: np.zeros((*a.shape[:-1], a.shape[-1] + 1), a.dtype),
    "another type": lambda a: a.astype(np.float32),
    "one number": lambda a: np.zeros((1,) * a.ndim, a.dtype),
    "not finite": lambda a: np.full_like(a, np.nan),
    "infinite": lambda a: np.full_like(a, np.inf),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
def test_arrays_of_another_form_are_refused_by_name(small, tmp_path, engine, kind):
    experiment, path = interrupted(small, tmp_path / "run", engine)
    arrays = load_arrays(path)
    floats = [name for name in arrays if name.startswith("run.") and arrays[name].dtype == float]
    floats = [name for name in floats if arrays[name].size > 1]
    assert any(name.endswith("params") for name in floats)
    for name in floats:
        save_arrays(path, changed(arrays, name, DAMAGE[kind](arrays[name])))
        with pytest.raises(StoreError, match="does not fit"):
            run_experiment(experiment, tmp_path / "run", resume=True)
    save_arrays(path, arrays)
    run_experiment(experiment, tmp_path / "run", resume=True)


def test_a_number_that_was_changed_is_noticed(small, tmp_path):
    experiment, path = interrupted(small, tmp_path / "run")
    arrays = load_arrays(path)
    (name,) = [name for name in arrays if name.endswith("params")]
    spoiled = changed(arrays, name, arrays[name] + 1e-12)
    with np.load(path) as file:
        np.savez(path, **spoiled, **{CHECKSUM: file[CHECKSUM]})  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"checkpoint\.npz is damaged.*checksum"):
        run_experiment(experiment, tmp_path / "run", resume=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no checksum"):
        run_experiment(experiment, tmp_path / "run", resume=True)


def test_the_checksum_sees_names_types_shapes_and_values():
    one = {"a": np.zeros(4), "b": np.array("x")}
    others = [
        {"a": np.zeros(4), "b": np.array("y")},
        {"a": np.zeros((2, 2)), "b": np.array("x")},
        {"a": np.zeros(8, np.float32), "b": np.array("x")},
        {"b": np.zeros(4), "a": np.array("x")},
        {"a": np.zeros(4)},
    ]
    assert len({_checksum(one), *map(_checksum, others)}) == 6
    assert _checksum(one) == _checksum(dict(reversed(one.items())))


def test_a_disk_that_is_full_at_the_end_keeps_the_old_results(small, tmp_path, monkeypatch):
    old, new = make_experiment(small), make_experiment({**small, "seed": 9})
    run_experiment(old, tmp_path / "run")

    def full(path, value):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("isfed.studies.results_folder.write_json", full)
        with pytest.raises(OSError, match="No space left"):
            run_experiment(new, tmp_path / "run", overwrite=True)
    assert load_results(tmp_path / "run").digest == old.digest
    assert run_experiment(new, tmp_path / "run", resume=True).digest == new.digest
    assert not list((tmp_path / "run").glob(".*.part"))


@pytest.mark.filterwarnings("ignore:.*diverging")
@pytest.mark.parametrize("step_size", [1e-308, 1.7])
def test_telemetry_is_finite_or_absent_with_the_reason(small, tmp_path, step_size):
    for algorithm in small["algorithm"]:
        algorithm["step_size"] = step_size
    small["rounds"] = 60
    results = run_experiment(make_experiment(small), tmp_path / "run")
    for algorithm in results.algorithms:
        told = algorithm.summary["telemetry"]
        if told is None:  # it diverged, and says so
            assert algorithm.summary["diverged"]
            continue
        absent = [name for name, value in told.items() if value is None]
        assert all(np.isfinite(v) for v in told.values() if isinstance(v, float))
        assert bool(absent) == ("absent" in told)
        for name in absent:
            assert name in told["absent"]
        for column in algorithm.telemetry.values():
            assert not np.isinf(column).any()
    ours = results.algorithms[1].summary["telemetry"]
    if step_size < 1.0:
        assert "1e-308" in ours["absent"]
