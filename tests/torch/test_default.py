"""`train` without a method: the default, its step size by short trials, killed and continued."""

# pyright: reportMissingImports=false

from typing import Any

import numpy as np
import pytest
from torch import nn

from isfed import FedAvg, FederatedData, LookAheadPasses, Passes, Problem, simulate
from isfed.simulate import pilot_runs
from isfed.torch import Network, diagnose, train

RNG = np.random.default_rng(0)
CENTRES = 2.0 * RNG.standard_normal((3, 4))
LABELS = np.repeat([0, 1, 2], 40)  # each agent has one class, or two
ROWS = (CENTRES[LABELS] + RNG.standard_normal((120, 4))).astype(np.float32)


def plain():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def normed():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def make_problem(make=plain):
    return Problem(FederatedData(ROWS, LABELS, np.arange(0, 121, 20)), Network(make), 3, 5)


def test_without_a_method_it_is_the_default_at_the_step_size_of_its_trials():
    problem = make_problem()
    found = train(problem, rounds=8, num_active=2, test=(ROWS, LABELS), every=4)
    method = pilot_runs.with_best_step_size(problem, LookAheadPasses(num_active=2), rounds=8)
    assert found.history.step_size == method.step_size
    again = train(problem, method, rounds=8, test=(ROWS, LABELS), every=4)
    np.testing.assert_array_equal(found.params, again.params)


def test_a_trial_takes_the_best_of_its_neighbours():
    problem = make_problem()
    losses = {}
    for place in range(-4, 7):
        method = LookAheadPasses(num_active=2, step_size=pilot_runs.FIRST_STEP * 2.0**place)
        model = simulate(problem, method, rounds=8, seed=pilot_runs.SEED).params[0]
        losses[method.step_size] = problem.risk(model)
    method = pilot_runs.with_best_step_size(problem, LookAheadPasses(num_active=2), rounds=8)
    near = [losses[method.step_size * factor] for factor in (0.5, 1.0, 2.0)]
    assert min(near) == near[1]
    assert near[1] < losses[pilot_runs.FIRST_STEP * 2.0**-4]


@pytest.mark.parametrize("make", [plain, normed])
def test_killed_and_continued_it_is_the_same_and_tries_no_step_again(make, tmp_path, monkeypatch):
    problem = make_problem(make)
    whole = train(problem, rounds=9, num_active=2, every=3)

    def stop(point):
        if point.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(problem, rounds=9, num_active=2, every=3, folder=tmp_path, callbacks=[stop])
    monkeypatch.setattr(pilot_runs, "_after_short_trials", None)  # would be called in vain
    rest = train(problem, rounds=9, num_active=2, every=3, folder=tmp_path, resume=True)
    np.testing.assert_array_equal(rest.params, whole.params)


def test_a_cloud_that_sees_sums_alone_has_random_passes():
    method = LookAheadPasses(num_active=2, step_size=0.1, single_changes=False)
    assert type(method.federated.sampler) is Passes
    assert method.federated.sampler.policy.equal


def test_what_is_missing_or_said_twice_is_named():
    problem = make_problem()
    with pytest.raises(ValueError, match="give num_active"):
        train(problem, rounds=2)
    with pytest.raises(ValueError, match="num_active=2 is for the default"):
        train(problem, FedAvg(step_size=0.1, num_active=2), rounds=2, num_active=2)
    for name, value in (("step_size", 0.0), ("floor", 0.0), ("server_step_size", -1.0)):
        wrong: Any = {name: value}
        with pytest.raises(ValueError, match=name):
            LookAheadPasses(num_active=2, **wrong)


def test_the_diagnosis_recommends_it():
    found = diagnose(make_problem(), num_active=2, step_size=0.1, draws=20)
    assert found.recommendation().startswith("Use LookAheadPasses(num_active=...)")
