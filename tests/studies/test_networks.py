"""The study of networks: what its quick form is called, and which keys play a role."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isfed.federation.agents import Ledger
from isfed.studies.dataset_config import EasyAndHard
from isfed.studies.experiment_config import read_study
from isfed.studies.neural_network_config import NetworkData, unused_keys
from isfed.studies.results_reader import StepSearch
from isfed.studies.study_summaries import network_row, useless_steps


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("b-shards", "quick"),  # its images are small, its turns are short
        ("d", "quick: 1 pass per turn"),  # it has no images
    ],
)
def test_the_title_of_a_quick_study_says_what_was_changed(name, said):
    whole, quick = (read_study("networks", setting=name, size=size) for size in ("", "quick"))
    assert quick.options["title"] == f"{whole.options['title']} ({said})"


def test_useless_steps_are_those_up_to_twice_the_chosen_one():
    losses = {0.1: 0.9, 0.2: 0.4, 0.4: 2.31, 0.8: np.inf}  # ln 10 is a guess
    assert useless_steps(StepSearch.of(losses)) == {"steps_tried": 3, "steps_useless": 1}


def test_the_row_of_a_method_has_its_last_accuracy_and_its_worst_drop():
    accuracy = np.array([[0.1, 0.9, 0.2, 0.5, 0.6, 0.4, 0.5, 0.7], [0.1, 0.2, 0.4] + 5 * [0.5]])
    history = SimpleNamespace(
        measured={"accuracy": accuracy}, ledgers=[Ledger().as_array()], rounds=10, step_size=0.2
    )
    result: Any = SimpleNamespace(history=history, seconds=1.0, diverged="")
    row = network_row("x", result, 5)
    assert row["accuracy"] == pytest.approx(0.6)  # of the last evaluation of eight
    assert row["worst_drop"] == pytest.approx((0.7 + 0.0) / 2)


def test_easy_agents_are_many_and_hard_ones_have_a_class_each():
    labels = np.repeat(np.arange(10), 60)
    owned = EasyAndHard()(labels, 100, 0)
    classes = [set(labels[part]) for part in np.split(owned.rows, owned.offsets[1:-1])]
    assert sum(kinds <= {0, 1} for kinds in classes) == 80
    others = [kinds for kinds in classes if not kinds <= {0, 1}]
    assert {len(kinds) for kinds in others} == {1}
    assert set.union(*others) == set(range(2, 10))
    with pytest.raises(ValueError, match="easy=10 must be between 1 and 9"):
        EasyAndHard(easy=10)(labels, 100, 0)
    with pytest.raises(ValueError, match="share="):
        EasyAndHard(share=1.0)(labels, 100, 0)


@pytest.mark.parametrize(
    ("source", "unused"),
    [
        (NetworkData(), {"side", "passes"}),
        (NetworkData(rows="mnist", model="cnn", passes=2), {"local_steps"}),
        (NetworkData(rows="writers"), {"num_agents", "partition", "passes"}),
        (
            NetworkData(rows="synthetic", model="softmax", compiled=True, passes=2),
            {"side", "local_steps", "partition", "hidden", "score", "optimizer", "momentum",
             "weight_decay", "device"},
        ),
    ],
)  # fmt: skip
def test_keys_that_play_no_role(source, unused):
    assert unused_keys(source.describe()) == unused
