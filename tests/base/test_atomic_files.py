"""Files written and renamed."""

import os

import numpy as np
import pytest

from isfed.base.atomic_files import (
    PART,
    clear_parts,
    load_arrays,
    pack_arrays,
    read_columns,
    read_json,
    save_arrays,
    write_columns,
    write_json,
)


def test_round_trip_is_private_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "state.npz"
    save_arrays(path, {"a": np.arange(3), "job": np.array("x")})
    save_arrays(path, {"a": np.arange(4), "job": np.array("y")})
    loaded = load_arrays(path)
    assert loaded["a"].tolist() == [0, 1, 2, 3]
    assert str(loaded["job"]) == "y"
    if os.name == "posix":  # Windows has no such modes
        assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["state.npz"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    save_arrays(path, {"a": np.arange(3)})

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        save_arrays(path, {"a": np.arange(9)})
    assert load_arrays(path)["a"].size == 3
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.npz is damaged"):
        load_arrays(path)


def test_json_has_null_for_what_it_has_no_word_for(tmp_path):
    write_json(tmp_path / "a.json", {"x": [1.5, float("nan")], "y": (float("inf"), True, "z")})
    assert read_json(tmp_path / "a.json") == {"x": [1.5, None], "y": [None, True, "z"]}


@pytest.mark.parametrize("text", ["", "{", "[1]", '"words"', "\xff"])
def test_damaged_json_is_named(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.json is damaged"):
        read_json(tmp_path / "a.json")


def test_columns_come_back_with_their_types(tmp_path):
    columns = {"name": ["a", "b"], "round": np.arange(2), "x": np.array([0.5, np.nan], np.float32)}
    write_columns(tmp_path / "a.parquet", columns)
    found = read_columns(tmp_path / "a.parquet")
    assert found["name"].tolist() == ["a", "b"]
    assert found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["x"], columns["x"])
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"a\.parquet is damaged"):
        read_columns(tmp_path / "a.parquet")


def test_equal_arrays_make_equal_bytes():
    arrays = {"a": np.arange(3), "b": np.zeros((2, 2))}
    assert pack_arrays(arrays) == pack_arrays({k: v.copy() for k, v in arrays.items()})


def test_parts_of_files_are_cleared_away(tmp_path):
    (tmp_path / f".a.json.x7{PART}").write_text("half")
    (tmp_path / "a.json").write_text("{}")
    clear_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_part_that_another_process_cleared_away_is_written_again(tmp_path, monkeypatch):
    chmod, cleared = os.chmod, []

    def clear_first(name, mode):
        if len(cleared) < 2:
            cleared.append(name)
            clear_parts(tmp_path)
        chmod(name, mode)

    monkeypatch.setattr("os.chmod", clear_first)
    write_json(tmp_path / "a.json", {"x": 1})
    assert len(cleared) == 2
    assert read_json(tmp_path / "a.json") == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_part_that_is_always_cleared_away_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("os.chmod", lambda *_: clear_parts(tmp_path))
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "a.json", {"x": 1})


def test_a_byte_that_was_changed_in_a_table_is_noticed(tmp_path):
    path = tmp_path / "t.parquet"
    known = {"a": np.random.default_rng(0).normal(size=50), "n": np.arange(50)}
    write_columns(path, known)
    content = path.read_bytes()
    begin = content.index(known["a"].tobytes())
    for at in range(begin, begin + known["a"].nbytes, 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"t\.parquet is damaged"):
            read_columns(path)
    path.write_bytes(content)
    np.testing.assert_array_equal(read_columns(path)["a"], known["a"])
    with pytest.raises(FileNotFoundError):
        read_columns(tmp_path / "absent.parquet")


def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    known = {"name": ["one", "two"] * 20, "round": np.arange(40), "x": rng.random(40)}
    known["x"][3] = np.nan  # absent in the file
    path = tmp_path / "a.parquet"
    write_columns(path, known)
    content = path.read_bytes()
    messages = []
    for at in range(0, len(content), 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            found = read_columns(path)
        except ValueError as error:
            messages.append(str(error))
            continue
        for name, column in known.items():
            np.testing.assert_array_equal(found[name], column)
    assert len(messages) > len(content) / 6  # half of those tried
    assert all("a.parquet is damaged" in message for message in messages)


def test_a_folder_in_the_place_of_a_table_is_no_table(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(ValueError, match=r"a\.parquet is damaged .a folder"):
        read_columns(tmp_path / "a.parquet")


def test_a_column_of_which_nothing_is_known_is_read_as_numbers(tmp_path):
    write_columns(tmp_path / "a.parquet", {"x": [1, 2], "error": [float("nan")] * 2})
    found = read_columns(tmp_path / "a.parquet")["error"]
    assert found.dtype == np.float64
    assert np.isnan(found).all()
