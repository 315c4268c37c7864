"""Models of chosen rounds: those of a run that ended there, in every engine and after a resume."""

from typing import Any

import numpy as np
import pytest

from isfed import (
    DivergenceError,
    FedAvg,
    FedProx,
    ISFedAvg,
    Regression,
    Served,
    ServerMomentum,
    simulate,
)
from isfed.simulate import make_run
from isfed.simulate.run_driver import Recording, drive
from isfed.simulate.run_history import check_keep
from isfed.studies.work_cells import Finished, merged

KEEP = [30, 0, 7, 1, 23, 7]
ROUNDS = [0, 1, 7, 23, 30]  # in order, each once
SOME: dict[str, Any] = {"step_size": 0.01, "num_active": 3}
KERNEL = {"memory": ISFedAvg(**SOME), "drift": ISFedAvg(**SOME, correction="drift")}
OTHERS = {"FedProx": FedProx(**SOME), "served": Served(FedAvg(**SOME), ServerMomentum())}
CASES = [
    *((name, engine) for name in KERNEL for engine in ("kernel", "agents", "objects")),
    *((name, engine) for name in OTHERS for engine in ("agents", "objects")),
]


class Sums:
    every: int = 5
    names: tuple[str, ...] = ("sum",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        return params.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def problem():
    return Regression(num_agents=8, num_examples=6, batch_size=(1, 3)).make(seed=1)


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_a_kept_model_is_that_of_a_run_of_so_many_rounds(problem, name, engine):
    how: dict[str, Any] = {"repetitions": 3, "seed": 4, "engine": engine}
    algorithm: Any = (KERNEL | OTHERS)[name]
    found = simulate(problem, algorithm, rounds=30, keep=KEEP, measure=Sums(), **how)
    assert found.kept_rounds.tolist() == ROUNDS
    assert found.kept.shape == (3, len(ROUNDS), problem.num_params)
    np.testing.assert_array_equal(found.kept[:, 0], 0.0)  # where every run begins
    for place, rounds in enumerate(ROUNDS[1:], start=1):
        alone = simulate(problem, algorithm, rounds=rounds, **how)
        np.testing.assert_array_equal(found.kept[:, place], alone.params)
    without = simulate(problem, algorithm, rounds=30, measure=Sums(), **how)
    for column in ("msd", "params", "telemetry", "gradients", "ledgers", "measured_rounds"):
        np.testing.assert_array_equal(getattr(found, column), getattr(without, column))
    np.testing.assert_array_equal(found.measured["sum"], without.measured["sum"])


def test_engines_keep_the_same_bits(problem):
    kernel, *others = (
        simulate(problem, ISFedAvg(**SOME), rounds=20, repetitions=2, keep=range(21), engine=engine)
        for engine in ("kernel", "agents", "objects")
    )
    for other in others:
        np.testing.assert_array_equal(kernel.kept, other.kept)
    distance = ((kernel.kept[:, 1:] - problem.optimum) ** 2).sum(axis=2)
    np.testing.assert_allclose(distance, kernel.msd, rtol=1e-12)  # every round, as the msd says


def test_all_models_of_many_rounds_can_be_kept(problem):
    """Every round ends a chunk, and chunks must not grow without end on that account."""
    found = simulate(problem, ISFedAvg(**SOME), rounds=1500, keep=range(1501))
    alone = simulate(problem, ISFedAvg(**SOME), rounds=1500)
    np.testing.assert_array_equal(found.kept[:, -1], alone.params)
    np.testing.assert_array_equal(found.msd, alone.msd)


def test_nothing_is_kept_unless_asked_for(problem):
    found = simulate(problem, ISFedAvg(**SOME), rounds=3)
    assert found.kept_rounds.size == found.kept.size == 0
    run = make_run(problem, ISFedAvg(**SOME))
    assert Recording(run, 3).kept.size == 0
    assert "kept" not in Recording(run, 3).checkpoint(run)


@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
def test_a_run_that_was_resumed_keeps_the_same(problem, engine):
    def fresh(keep: Any) -> tuple[Any, Recording]:
        run = make_run(problem, ISFedAvg(**SOME), repetitions=2, engine=engine)
        return run, Recording(run, 30, keep=check_keep(keep, 30))

    whole = drive(*fresh(KEEP))
    saved: list[dict[str, np.ndarray]] = []

    def save(arrays: dict[str, np.ndarray]) -> None:
        saved.append({name: values.copy() for name, values in arrays.items()})

    first, recording = fresh(KEEP)
    drive(first, recording, save=save, stop=lambda: recording.done >= 7)
    assert int(saved[-1]["round_index"]) == 7
    second, recording = fresh(KEEP)
    recording.resume(second, saved[-1])
    np.testing.assert_array_equal(drive(second, recording).kept, whole.kept)
    other, recording = fresh([5])
    with pytest.raises(ValueError, match=r"it keeps the models of rounds \[0, 1, 7, 23, 30\]"):
        recording.resume(other, saved[-1])
    del saved[-1]["kept_rounds"]
    with pytest.raises(KeyError):
        recording.resume(other, saved[-1])


@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
def test_a_run_that_diverges_keeps_what_came_before(problem, engine):
    """The round that diverges begins where a model is kept, and must not overwrite it."""
    algorithm = FedAvg(step_size=1e3, num_active=3)
    with pytest.raises(DivergenceError) as first:
        simulate(problem, algorithm, rounds=200, engine=engine)
    end = first.value.round_index
    assert end > 1
    with pytest.raises(DivergenceError) as caught:
        simulate(problem, algorithm, rounds=200, engine=engine, keep=[1, end, end + 1])
    found = caught.value.history
    last = simulate(problem, algorithm, rounds=end, engine=engine, keep=[1])
    np.testing.assert_array_equal(found.kept[:, :2], np.stack([last.kept[:, 0], last.params], 1))
    assert np.isnan(found.kept[:, 2]).all()


def test_cells_are_put_together_with_their_models(problem):
    parts = [simulate(problem, FedAvg(**SOME), rounds=9, seed=seed, keep=[2, 9]) for seed in (0, 1)]
    found = merged([Finished(part, None, 0.0, "") for part in parts], rows=48).history
    assert found.kept_rounds.tolist() == [2, 9]
    np.testing.assert_array_equal(found.kept, np.concatenate([part.kept for part in parts]))


@pytest.mark.parametrize("keep", [[21], [-1], [3, 2.5], [True], np.array([1.0])])
def test_what_is_no_round_of_the_run_is_refused(problem, keep):
    with pytest.raises(ValueError, match=r"^keep=.* has .*; expected whole numbers from 0") as told:
        simulate(problem, FedAvg(**SOME), rounds=20, keep=keep)
    said = str(told.value)
    assert said.endswith("to rounds=20: leave it out, or run more rounds")
    assert "\n" not in said


@pytest.mark.parametrize("keep", [7, "all", {1}, None])
def test_what_is_no_sequence_is_refused(problem, keep):
    with pytest.raises(TypeError, match=r"^keep=.* must be a sequence of rounds, e.g. keep=\[10"):
        simulate(problem, FedAvg(**SOME), rounds=20, keep=keep)
