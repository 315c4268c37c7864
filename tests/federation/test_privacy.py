"""Clipping and noise: the bound holds, the noise has the stated size, and mistakes are named."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stepped import Stepped

from isfed import Uniform, Upload
from isfed.federation.safety import Privacy, Safety
from isfed.methods import ISFedAvg


@given(
    hnp.arrays(float, st.integers(1, 6), elements=st.floats(-1e100, 1e100)),
    st.floats(1e-6, 1e6),
)
def test_nothing_is_longer_than_the_clip_and_short_changes_stay(change, clip):
    length = np.linalg.norm(change)
    found = Privacy(clip=clip).shorten(change)
    assert np.linalg.norm(found) <= clip * (1 + 1e-12)
    if length <= clip:
        assert (found == change).all()


@pytest.mark.parametrize("weighting", ["step", "change"])
@pytest.mark.parametrize("agent", range(4))
def test_no_agent_moves_the_model_further_than_stated(weighting, agent):
    """Replacing one agent's change by any other moves the step by at most 2 clip / L."""
    algorithm = ISFedAvg(step_size=0.1, num_active=4)
    rng = np.random.default_rng(agent)
    changes = rng.standard_normal((4, 3)) * 10.0 ** rng.uniform(-3, 3, (4, 1))

    def step(changes):
        safety = Safety(privacy=Privacy(clip=0.5), largest_ratio=math.inf)
        cloud = Stepped(
            algorithm, np.zeros(3), 4, lambda _, k, *rest: Upload(changes[k], 1.0, 0),
            safety=safety, weighting=weighting,
        )  # fmt: skip
        cloud.step()
        return cloud.params

    base = step(changes)
    for other in (np.zeros(3), rng.standard_normal(3) * 1e6, -changes[agent]):
        altered = changes.copy()
        altered[agent] = other
        bound = (1.0 if not other.any() else 2.0) * 0.5 / 4
        assert np.linalg.norm(step(altered) - base) <= bound * (1 + 1e-12)


def test_the_noise_has_the_stated_deviation_and_no_two_rounds_share_it():
    privacy, rng = Privacy(clip=3.0, noise=2.0), np.random.default_rng(0)
    drawn = privacy.disturbance(40_000, num_active=6, rng=rng)
    assert drawn.std() == pytest.approx(1.0, abs=4 / math.sqrt(80_000))
    assert (privacy.disturbance(4) != privacy.disturbance(4)).all()


def test_clipped_changes_are_counted():
    safety = Safety(privacy=Privacy(clip=1.0))
    cloud = Stepped(
        ISFedAvg(step_size=0.1, num_active=3), np.zeros(2), 3,
        lambda place, *_: Upload(np.full(2, (0.1, 5.0, 50.0)[place]), 1.0, 0), safety=safety,
    )  # fmt: skip
    assert cloud.step().clipped == 2


def test_rounds_that_close_early_would_tell_who_was_drawn():
    with pytest.raises(ValueError, match=r"enough=0\.5 closes rounds early, and when they close"):
        Safety(enough=0.5, privacy=Privacy(clip=1.0, noise=1.0))
    Safety(enough=0.5, privacy=Privacy(clip=1.0))


def test_with_noise_no_agent_changes_the_limit_of_length_of_another():
    """With it, what one sends would show in the changes of all: only the clip limits them."""
    for noise, shortened in ((0.0, 1), (1.0, 0)):
        cloud = Stepped(
            ISFedAvg(step_size=0.1, num_active=3, agents=Uniform()), np.zeros(2), 3,
            lambda place, *_: Upload(np.full(2, (1.0, 1.0, 50.0)[place]), 1.0, 0),
            safety=Safety(privacy=Privacy(clip=1e3, noise=noise)),
        )  # fmt: skip
        assert cloud.step().shortened == shortened


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip": 0.0}, "clip=0.0 must be a length greater than 0"),
        ({"clip": math.nan}, "clip=nan must be"),
        ({"clip": 1.0, "noise": -1.0}, "noise=-1.0 must be a number >= 0"),
        ({"clip": 1.0, "noise": math.inf}, "noise=inf must be"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**values)
