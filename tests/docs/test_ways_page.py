"""What `isfed diagnose` says about its certainty is what the page of ways measured."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from isfed.report.diagnosis_report import ERRORS

PAGE = Path(__file__).parents[2] / "docs" / "appendix" / "ways.md"


def test_how_certain_a_prediction_is_comes_from_the_page():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    found = {row[0]: (float(row[2].split()[0]), float(row[4])) for row in rows if row[0] in ERRORS}
    assert found == ERRORS


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(PAGE.parents[1] / "make"))
    yield pytest.importorskip("ways_on_tables")
    for name in ("ways_on_tables", "auto_steps"):
        sys.modules.pop(name, None)


def test_the_page_says_what_is_kept(script):
    cells = json.loads(script.KEPT.read_text("utf-8"))
    assert {"synthetic", "digits", "paper"} <= cells.keys()
    assert "\n".join(script.page(cells)) + "\n" == PAGE.read_text("utf-8")


def test_numbers_that_are_not_kept_do_not_count(script):
    one, other = {"step": 0.2, "rounds": 100}, {"step": 0.1, "rounds": None}
    assert script.apart(one, other, "step") == script.apart(other, one, "step") == 2.0
    assert script.apart(one, other, "rounds") == np.inf  # one of them never gets there
    assert script.apart({}, other, "step") is None
    assert script.apart({"rounds": None}, other, "rounds") is None
