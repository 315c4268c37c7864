"""Files written and renamed."""

import numpy as np
import pytest

from isfed.base.files import load_arrays, save_arrays


def test_round_trip_is_private_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "deep" / "state.npz"
    save_arrays(path, {"a": np.arange(3), "job": np.array("x")})
    save_arrays(path, {"a": np.arange(4), "job": np.array("y")})
    loaded = load_arrays(path)
    assert loaded["a"].tolist() == [0, 1, 2, 3]
    assert str(loaded["job"]) == "y"
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
