"""The paper's classification: the partitions, the rows held out, and the passage of a level."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isfed.experiments.classification import (
    Ijcnn1Source,
    landmarks,
    paper_classification,
    passage,
)
from isfed.experiments.runner import run_experiment
from isfed.experiments.steps import StepChoice
from isfed.experiments.store import MEASURES

needs_data = pytest.mark.skipif(
    not os.environ.get("ISFED_DATA"), reason="set ISFED_DATA to the folder of the data sets"
)


def test_the_passage_is_the_one_after_the_peak(tmp_path):
    errors = [0.10, 0.40, 0.30, 0.20, 0.25]
    columns = {
        "algorithm": ["a"] * 5,
        "measure": ["test_error"] * 5,
        "round": [0, 10, 20, 30, 40],
        "mean": errors,
    }
    pq.write_table(pa.table(columns), tmp_path / MEASURES)
    assert passage(tmp_path, "a", 0.22) == 30
    assert passage(tmp_path, "a", 0.05) is None


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
    tuned = paper_classification(Ijcnn1Source(every=10))
    choices = {name: StepChoice(1.0, {1.0: 0.5}) for name in tuned.methods}
    experiment = tuned.experiment(choices)
    short = type(experiment)(**{**vars(experiment), "rounds": 20, "repetitions": 2})
    summary = run_experiment(short, tmp_path / "run")
    assert len(summary["algorithms"]) == 8
    assert 0.0 < summary["algorithms"][0]["final"]["test_error"]["mean"] < 1.0
    source = Ijcnn1Source()
    problem = source.make()
    known = landmarks(problem, source.measure(problem))
    assert known["majority_test_error"] == pytest.approx(8_712 / 91_701)
