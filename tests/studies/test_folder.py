"""The results folder: whose it is, and what is said of one that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isfed.base.atomic_files import PART
from isfed.studies.results_folder import (
    CELLS,
    CONFIG,
    HISTORY,
    MANIFEST,
    SUMMARY,
    TIMES,
    Configured,
    Folder,
    StoreError,
    locked,
)
from isfed.studies.results_reader import load_results


class Small(Configured):
    """A study of nothing."""

    kind = "experiment"

    def __init__(self, **resolved) -> None:
        self.resolved = resolved


MINE, OTHER = Small(x=1), Small(x=2)
ROW = {"experiment": "small", "algorithms": [], "made_with": {}}


def _write(folder, configured=MINE, **options):
    place = Folder(folder, configured)
    with place.opened(resume=False, overwrite=False, **options) as complete:
        assert not complete
        place.replace({"history.parquet": {"algorithm": ["a"], "round": [1]}}, ROW, {})


def test_two_kinds_never_share_a_fingerprint():
    class Another(Small):
        kind = "tuned"

    assert Small(x=1).digest == MINE.digest != Another(x=1).digest


def test_where_the_data_are_is_no_part_of_the_fingerprint():
    one, two = (Small(problem={"file": f"/{d}/x.csv", "sha256": "00"}) for d in "ab")
    assert one.digest == two.digest != Small(problem={"file": "/a/x.csv", "sha256": "01"}).digest


def test_one_run_at_a_time(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(StoreError, match="another run"),
        Folder(tmp_path / "run", MINE).opened(resume=True, overwrite=False),
    ):
        pass


def test_parts_of_files_are_cleared_away(tmp_path):
    _write(tmp_path)
    part = tmp_path / f".summary.json.x7{PART}"
    part.write_text("half")
    with Folder(tmp_path, MINE).opened(resume=False, overwrite=True):
        assert not part.exists()


def test_parts_are_cleared_away_beside_complete_results_too(tmp_path):
    # A kill while the page or the command is written, after the results are there.
    _write(tmp_path)
    part = tmp_path / f".command.txt.x7{PART}"
    part.write_text("half")
    with Folder(tmp_path, MINE).opened(resume=True, overwrite=False) as complete:
        assert complete
        assert not part.exists()


def test_a_folder_in_progress_is_ours_and_says_whose(tmp_path):
    with Folder(tmp_path, MINE).opened(resume=False, overwrite=False):
        pass
    with pytest.raises(StoreError, match="--resume continues"):
        Folder(tmp_path, MINE).check(resume=False, overwrite=False)
    assert not Folder(tmp_path, MINE).check(resume=True, overwrite=False)
    with pytest.raises(StoreError, match=f"{CELLS}/{MINE.digest}/{CONFIG}"):
        Folder(tmp_path, OTHER).check(resume=True, overwrite=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("digest.txt", "0123456789abcdef"),
        ("diagnosis.json", "{}"),
        (SUMMARY, json.dumps({"algorithms": [], "verdict": "it buys nothing"})),
    ],
)
def test_the_first_format_is_known_and_replaced_if_asked(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "algorithm-1.npz").write_bytes(b"old")
    for resume in (False, True):
        with pytest.raises(StoreError, match=r"format 0.*--overwrite.*--out"):
            Folder(tmp_path, MINE).check(resume=resume, overwrite=False)
    with pytest.raises(StoreError, match="format 0"):
        load_results(tmp_path)
    place = Folder(tmp_path, MINE)
    with place.opened(resume=False, overwrite=True):
        assert (tmp_path / name).exists()  # until the new results are there
        place.replace({}, ROW, {})
    assert load_results(tmp_path).digest == MINE.digest
    assert not (tmp_path / "checkpoints").exists()
    assert name == SUMMARY or not (tmp_path / name).exists()


def test_a_later_format_is_left_alone(tmp_path):
    (tmp_path / SUMMARY).write_text(json.dumps({"format": 7, "kind": "experiment"}))
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="later version of isfed"):
            Folder(tmp_path, MINE).check(resume=False, overwrite=overwrite)
    with pytest.raises(StoreError, match="update isfed"):
        load_results(tmp_path)


def test_a_summary_of_somebody_else_is_theirs(tmp_path):
    (tmp_path / SUMMARY).write_text('{"sales": 3}')
    with pytest.raises(StoreError, match="not results"):
        Folder(tmp_path, MINE).check(resume=False, overwrite=True)
    with pytest.raises(StoreError, match="not a results folder"):
        load_results(tmp_path)


def test_a_damaged_summary(tmp_path):
    _write(tmp_path)
    (tmp_path / SUMMARY).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        Folder(tmp_path, MINE).check(resume=True, overwrite=False)
    with pytest.raises(StoreError, match="damaged"):
        load_results(tmp_path)
    Folder(tmp_path, MINE).check(resume=False, overwrite=True)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="not a folder"):
        Folder(tmp_path / "file", MINE).check(resume=False, overwrite=True)


@pytest.mark.parametrize("made", [CELLS, f"{CELLS}/{MINE.digest}"])
def test_killed_while_the_folder_was_made(tmp_path, made):
    (tmp_path / made).mkdir(parents=True)
    (tmp_path / ".lock").touch()
    assert not Folder(tmp_path, MINE).check(resume=True, overwrite=False)


def test_killed_before_the_cells_were_removed(tmp_path):
    _write(tmp_path)
    cell = tmp_path / CELLS / MINE.digest / "a.0-3.npz"
    cell.parent.mkdir(parents=True)
    cell.write_bytes(b"done")
    with Folder(tmp_path, MINE).opened(resume=True, overwrite=False) as complete:
        assert complete
    assert not (tmp_path / CELLS).exists()


def test_a_folder_of_cells_of_somebody_else_is_theirs(tmp_path):
    (tmp_path / CELLS / "prison").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"not results \(cells\)"):
        Folder(tmp_path, MINE).check(resume=False, overwrite=True)


def test_killed_at_any_file_of_the_exchange(tmp_path, monkeypatch):
    """Wherever the exchange of old for new results stops, no mixture is taken for results."""
    real, seen = Path.replace, []

    def dies(path, target):
        seen.append(target.name)
        if len(seen) > survives:
            raise KeyboardInterrupt
        return real(path, target)

    for survives in range(len((HISTORY, CONFIG, TIMES, MANIFEST, SUMMARY))):
        out, seen[:] = tmp_path / str(survives), []
        _write(out, OTHER)
        place = Folder(out, MINE)
        with place.opened(resume=False, overwrite=True), monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dies)
            with pytest.raises(KeyboardInterrupt):
                place.replace({HISTORY: {"algorithm": ["a"], "round": [2]}}, ROW, {})
        with pytest.raises(StoreError, match="not finished"):
            load_results(out)
        with place.opened(resume=True, overwrite=False) as complete:
            assert not complete
            place.replace({HISTORY: {"algorithm": ["a"], "round": [2]}}, ROW, {})
        assert load_results(out).digest == MINE.digest
    assert seen[-2:] == [MANIFEST, SUMMARY]
