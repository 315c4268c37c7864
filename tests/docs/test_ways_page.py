"""What `isfed diagnose` says about its certainty is what the page of ways measured."""

from pathlib import Path

from isfed.report.diagnosis_report import ERRORS

PAGE = Path(__file__).parents[2] / "docs" / "appendix" / "ways.md"


def test_how_certain_a_prediction_is_comes_from_the_page():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines()]
    found = {row[0]: (float(row[2].split()[0]), float(row[4])) for row in rows if row[0] in ERRORS}
    assert found == ERRORS
