"""The study of networks: what its quick form is called, and which keys play a role."""

from __future__ import annotations

import pytest

from isfed.studies.network_config import NetworkData, unused_keys
from isfed.studies.networks_study import SETTINGS, NetworkStudy, quick


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", "quick: smaller images, 10 steps per turn"),
        ("b-shards", "quick"),  # its images are small, its turns are short
        ("d", "quick: 1 pass per turn"),  # it has no images
        ("e", "quick: smaller images"),
    ],
)
def test_the_title_of_a_quick_study_says_what_was_changed(name, said):
    setting = SETTINGS[name]
    assert quick(NetworkStudy(setting)).setting.title == f"{setting.title} ({said})"


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
