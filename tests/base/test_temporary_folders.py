"""Folders of killed processes are removed by the next one, and those in use are not."""

import gc
import os
import signal
import subprocess
import sys

import pytest

from isfed.base.temporary_folders import HeldFolder, abandoned, remove_abandoned

MAKE = """
import sys, time
from pathlib import Path
from isfed.base.temporary_folders import HeldFolder
folder = HeldFolder("some-", Path(sys.argv[1]))
(folder.path / "secret").write_text("of the process")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_is_there_until_it_is_closed_or_collected(tmp_path):
    closed, collected = HeldFolder("some-", tmp_path), HeldFolder("some-", tmp_path)
    (closed.path / "content").touch()
    remove_abandoned("some-", tmp_path)  # both are in use
    assert sorted(tmp_path.iterdir()) == sorted([closed.path, collected.path])
    closed.close()
    closed.close()
    assert list(tmp_path.iterdir()) == [collected.path]
    del collected
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps what another process still maps")
def test_what_cannot_be_removed_is_an_error(tmp_path, monkeypatch):
    folder = HeldFolder("some-", tmp_path)

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        with pytest.raises(PermissionError):
            folder.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing can be killed like this")
def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    path = process.stdout.readline().strip()
    remove_abandoned("some-", tmp_path)
    assert [str(each) for each in tmp_path.iterdir()] == [path]
    process.kill()
    process.communicate()
    assert [str(each) for each in tmp_path.iterdir()] == [path]
    found = [(str(each), (each / "secret").read_text()) for each in abandoned("some-", tmp_path)]
    assert found == [(path, "of the process")]
    assert not list(tmp_path.iterdir())


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "some-file").touch()
    (tmp_path / "some-unlocked").mkdir()  # its owner has not locked it yet
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "lock").touch()
    (tmp_path / "some-link").symlink_to(tmp_path / "else")
    remove_abandoned("some-", tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
