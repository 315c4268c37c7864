"""The largest stable step size, by runs: stable at half of it, unstable at four times.

A short version of docs/make/stable_steps.py. Started at w^o, a run is stable if its msd stays near
what its step size predicts to first order; beyond the limit it is far above that.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "docs" / "make" / "stable_steps.py"
spec = importlib.util.spec_from_file_location("stable_steps", PATH)
assert spec is not None
assert spec.loader is not None
study = importlib.util.module_from_spec(spec)
sys.modules["stable_steps"] = study
spec.loader.exec_module(study)

LOGISTIC = [name for name, given in study.PROBLEMS.items() if "classes" not in given]


def test_there_are_five_logistic_problems():
    assert len(LOGISTIC) >= 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", study.PROBLEMS)
def test_stable_at_half_unstable_at_four_times(name):
    problem = study.make(**study.PROBLEMS[name])
    for _, largest, careful, found in study.ratios(problem, rounds=500, shares=(0.5, 4.0)):
        assert careful <= largest
        assert found[0] < 4.0  # 2, where draws are as the theory has them
        assert found[1] > max(10.0, 5.0 * found[0])
