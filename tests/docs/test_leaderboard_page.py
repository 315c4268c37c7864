"""docs/make/leaderboard_page.py, on two small folders: methods, and combinations of parts."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from small_board import TINY

from isfed.base.atomic_files import read_columns
from isfed.studies import load_results
from isfed.studies.leaderboard_config import make_protocol
from isfed.studies.leaderboard_study import Leaderboard
from isfed.studies.results_folder import REPETITIONS
from isfed.studies.study_engine import run_study

PLACE = Path(__file__).parents[2] / "docs" / "make" / "leaderboard_page.py"
METHODS = {key: value for key, value in TINY.items() if key != "factorial"}
REFERENCE = [one for one in TINY["method"] if one.get("name") == TINY["reference"]]
PARTS = TINY | {"method": REFERENCE}
HEAD = "# A page\n\nWritten by hand.\n\n"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("leaderboard_page", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def board(folder, tables):
    run_study(Leaderboard(make_protocol(tables)), folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("boards")
    return board(place / "methods", METHODS), board(place / "parts", PARTS)


@pytest.fixture
def written(maker, tmp_path, monkeypatch):
    """Runs the script with some arguments; returns the page."""
    page = tmp_path / "leaderboard.md"
    page.write_text(f"{HEAD}{maker.MARK}\nwhat was there\n", encoding="utf-8")
    monkeypatch.setattr(maker, "PAGE", page)

    def write(*arguments):
        monkeypatch.setattr(sys, "argv", ["leaderboard_page.py", *map(str, arguments)])
        maker.main()
        return page.read_text(encoding="utf-8")

    return write


def tables_in(text):
    """By heading, the rows of its table; the first has the names of the columns."""
    found = {}
    for part in text.split("\n## ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        found[part.splitlines()[0]] = [line.strip("| ").split(" | ") for line in lines]
    return found


@pytest.mark.filterwarnings("error")
def test_the_page_of_two_folders(maker, written, folders):
    text = written(*folders)
    assert text.startswith(HEAD + maker.MARK)
    assert "what was there" not in text
    assert written(*folders) == text  # again: nothing piles up
    tables = tables_in(text)
    for rows in tables.values():
        assert {len(row) for row in rows if row} == {len(rows[0])}
    headings = " ".join(tables)
    for start in ("Gain over FedAvg with 1/E_k in dB", "Every combination", "What methods need",
                  "Gain over FedAvg with 1/E_k on the tuning seed", "How many times smaller",
                  "What two parts", "Combinations that cannot work", "outliers"):  # fmt: skip
        assert start in headings
    assert len(tables) == text.count("\n## ")  # no heading stands twice
    lines = [line for line in text.splitlines() if line and line[0] not in "|#<"]
    assert not {line for line in lines if f"## {line}" in text}  # nor as a caption again


def test_the_best_combination_is_paired_with_every_method(maker, written, folders):
    results = [load_results(folder) for folder in folders]
    best = results[1].summary["factorial"]["best"]
    (rows,) = [rows for heading, rows in tables_in(written(*folders, "--no-variance")).items()
               if heading.startswith(f"What {best} gains")]  # fmt: skip
    columns = [read_columns(one.path / REPETITIONS) for one in results]
    level = [np.array(one["steady_msd"], float) for one in columns]
    start = results[0].summary["problems"][0]["start_db"]

    def decibels(which, name):
        mine = np.array(columns[which]["algorithm"]) == name
        return np.minimum(10.0 * np.log10(level[which][mine]), start)

    own = decibels(1, f"outliers: {best} (combined)")
    shown = {row[0]: row[1] for row in rows[2:]}
    assert set(shown) == {"FedAvg with 1/E_k", "ISFedAvg", "PowerOfChoice"}
    for name, gain in shown.items():
        mean = float((decibels(0, f"outliers: {name}") - own).mean())
        assert gain.startswith(f"{mean:.1f} dB".replace("-", "−"))


def test_one_step_for_all_is_that_of_the_reference(maker, folders):
    results = load_results(folders[0])
    rows = {r["method"]: dict(map(tuple, r["tried"])) for r in results.summary["algorithms"]}
    base = rows["FedAvg with 1/E_k"]
    step = min(base, key=lambda one: np.inf if base[one] is None else base[one])
    for row in maker.same_step(results).rows:
        gain = 10.0 * np.log10(base[step] / rows[row[0].text][step])
        assert row[1].text == f"{np.clip(gain, -30.0, 30.0):.1f}".replace("-", "−")
    assert maker._decibels(1.0, None) == -30.0  # who diverged
    assert maker._decibels(1.0, 0.0) == 30.0


def test_folders_that_are_no_pairs_are_refused(written, folders, tmp_path):
    with pytest.raises(SystemExit, match="no combinations that ran"):
        written(folders[0], folders[0], "--no-variance")
    few = {"rounds": 12, "tuning_rounds": 12, "repetitions": 2, "trials": 1}
    other = board(tmp_path / "other", PARTS | few)
    with pytest.raises(SystemExit, match="differ in rounds, tuning_rounds"):
        written(folders[0], other, "--no-variance")
    one = [{**TINY["problem"][0], "num_active": 2}]
    other = board(tmp_path / "third", PARTS | {"problem": one, "trials": 1})
    with pytest.raises(SystemExit, match="differ in outliers"):
        written(folders[0], other, "--no-variance")


def test_methods_alone_make_a_page_too(written, folders):
    tables = tables_in(written(folders[0]))
    assert not any(heading.startswith("Every combination") for heading in tables)
