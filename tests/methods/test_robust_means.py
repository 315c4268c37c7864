"""Robust combinations: how many hostile changes they bear, and what they do to honest ones."""

import numpy as np
import pytest
from rogue import breakdown
from stepped import Stepped

from isfed import PAPER, ByScore, Federated, HorvitzThompson, LocalSteps, Uniform, Upload, simulate
from isfed.federation.safety import Privacy, Safety
from isfed.methods.private import Private
from isfed.methods.robust_means import GeometricMedian, NormClippedMean, TrimmedMean

ROBUST = [NormClippedMean(), TrimmedMean(share=0.2), TrimmedMean(share=0.4), GeometricMedian()]


@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [
        (HorvitzThompson(), 0),
        (NormClippedMean(), 9),  # of 20: with 10 the median length is the rogues'
        (TrimmedMean(share=0.2), 4),
        (TrimmedMean(share=0.4), 8),
        (GeometricMedian(), 9),
    ],
    ids=str,
)
def test_breakdown_points(estimator, wanted):
    """So many of 20 may send anything, and the step stays within the honest ones' reach."""
    assert breakdown(estimator) == wanted


@pytest.mark.parametrize("estimator", ROBUST, ids=str)
def test_equal_changes_are_their_own_centre(estimator):
    rows = np.tile([1.0, -2.0, 0.0], (7, 1))
    np.testing.assert_allclose(estimator.centre(rows), rows[0], atol=1e-12)
    np.testing.assert_allclose(estimator.centre(rows[:1]), rows[0], atol=1e-12)
    assert not estimator.centre(np.zeros((4, 3))).any()


def test_the_geometric_median_has_the_smallest_sum_of_distances():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 3)) + 5.0 * (rng.random((9, 1)) < 0.3)
    total = lambda point: np.linalg.norm(rows - point, axis=1).sum()  # noqa: E731
    centre = GeometricMedian().centre(rows)
    for _ in range(200):
        assert total(centre) <= total(centre + 1e-3 * rng.normal(size=3)) + 1e-9


@pytest.mark.parametrize("estimator", ROBUST, ids=str)
def test_an_honest_run_still_learns(estimator):
    """Labelled biased: it ends near the optimum and not at it."""
    problem = PAPER.replace(num_agents=20, num_examples=30).make()
    plain, robust = (
        simulate(problem, Federated(ByScore(8, Uniform()), LocalSteps(0.02), part), rounds=600)
        for part in (HorvitzThompson(), estimator)
    )
    start = np.linalg.norm(problem.optimum)
    distance = np.linalg.norm(robust.params - problem.optimum)
    print(f"{estimator}: {distance / start:.3f} of the way left, "
          f"{np.linalg.norm(plain.params - problem.optimum) / start:.3f} by the mean")  # fmt: skip
    assert distance < 0.2 * start


def test_it_runs_over_a_network_and_under_a_clip_but_not_under_noise():
    method = Federated(ByScore(6), LocalSteps(1.0), TrimmedMean(share=0.2))
    answer = lambda place, agent, *_: Upload(np.array([1e3 if agent == 0 else 1.0]), 1.0, 0)  # noqa: E731
    cloud = Stepped(method, np.zeros(1), 20, answer, safety=Safety(privacy=Privacy(clip=1e9)))
    for _ in range(40):
        cloud.step()
    assert cloud.params[0] < 1.5 * 40  # with the mean, over 2 000 but for the limit of length
    with pytest.raises(ValueError, match="for a plain sum of changes, and TrimmedMean is none"):
        Private(TrimmedMean(), Privacy(clip=1.0, noise=1.0))
    with pytest.raises(ValueError, match=r"share=0\.5 must be at least 0 and below 0\.5"):
        TrimmedMean(share=0.5)
