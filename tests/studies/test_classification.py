"""The paper's classification: the partitions, the rows held out, and the passage of a level."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from isfed.simulate import History
from isfed.studies.dataset_config import Ijcnn1Source
from isfed.studies.experiment_config import read_study
from isfed.studies.study_engine import run_study
from isfed.studies.study_summaries import passage
from isfed.studies.work_cells import Finished

needs_data = pytest.mark.skipif(
    not os.environ.get("ISFED_DATA"), reason="set ISFED_DATA to the folder of the data sets"
)


def measured(errors: list[float]) -> Finished:
    """A result whose mean test error is that, every ten rounds."""
    params, none = np.zeros((1, 1)), np.empty((1, 0))
    history = History(
        msd=np.zeros((1, 10 * len(errors) - 10)),
        params=params, agent_prob=none, example_prob=none, gradients=none, uploads=none,
        measured_rounds=10 * np.arange(len(errors)), measured={"test_error": np.array([errors])},
    )  # fmt: skip
    return Finished(history, None, 0.0)


def test_the_passage_is_the_one_after_the_peak_and_the_last_for_good():
    result = measured([0.10, 0.40, 0.30, 0.20, 0.25, 0.21, 0.20])
    assert passage(result, 0.22) == (30, 50)
    assert passage(result, 0.29) == (30, 30)
    assert passage(result, 0.05) == (None, None)  # never reached
    assert passage(result, 0.50) == (None, None)  # never above


@needs_data
def test_one_class_agents_weigh_both_classes_equally():
    problem = Ijcnn1Source().make()
    assert problem.num_agents == 100
    signs = [np.unique(problem.data.agent(k)[1]) for k in range(100)]
    assert all(sign.size == 1 for sign in signs)
    assert sum(sign[0] > 0 for sign in signs) == 50
    assert len(problem.data.targets) == 35_000


@needs_data
def test_natural_agents_have_the_paper_s_sizes():
    sizes = Ijcnn1Source(partition="natural").make().data.num_examples
    assert sizes.sum() == 35_000
    assert sizes.min() >= 79
    assert sizes.max() <= 688


@needs_data
def test_held_out_blocks_are_contiguous_and_apart():
    source = Ijcnn1Source(held_out=True)
    problem = source.make()
    measure = source.held_out_loss(problem)
    assert len(problem.data.targets) + len(measure.y) == 35_000
    assert len(measure.y) == 7_000
    # Half of the weight is on each class, as half of the agents hold each.
    assert measure.weight[measure.y > 0].sum() == pytest.approx(0.5)


@needs_data
def test_a_short_run_end_to_end(tmp_path):
    changes = {
        "problem": {"every": 10},
        "step_sizes": {"grid": [1.0, 2.0], "rounds": 20, "repetitions": 1},
    }
    tuned = read_study(
        "classification", setting="one-class", changes=changes, rounds=25, repetitions=2
    )
    results = run_study(tuned, tmp_path / "run")
    assert len(results.algorithms) == 8
    assert 0.0 < results.algorithms[0].measures["test_error"].mean[-1] < 1.0
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    known = written["landmarks"]
    assert known["majority_test_error"] == pytest.approx(8_712 / 91_701)
    assert known["optimum_test_error"] == pytest.approx(0.174, abs=0.01)
    assert known["paper_test_error"] == {"FedAvg": 0.2245, "ISFedAvg": 0.1846}
    assert "passage_round" in known
    assert written["step_sizes"].keys() == tuned.algorithms.keys()
