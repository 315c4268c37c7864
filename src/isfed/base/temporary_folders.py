"""What is left of a process that was killed: its temporary folders go, and its workers end.

The system releases a dead process's locks, so the next process sees which folders are abandoned.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO

from isfed.base.atomic_files import lock_file

LOCK = "lock"
BETWEEN = 0.5  # seconds between two looks at the parent


class HeldFolder:
    """A folder that only its owner can enter, until `close`, collection or the end of the process.

    Attributes:
        path: Where it is.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self.path, lock = _make(prefix, parent)
        self._end = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder."""
        self._end()


def _make(prefix: str, parent: Path | None) -> tuple[Path, TextIO]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = lock_file(path / LOCK)
        except (BlockingIOError, FileNotFoundError):  # taken for abandoned before it was locked
            continue
        if (path / LOCK).exists():
            return path, lock
        lock.close()


def _remove(path: Path, lock: TextIO) -> None:
    if os.name == "nt":  # removes no file that is open
        lock.close()
    with contextlib.suppress(FileNotFoundError):  # somebody else removed it
        # Keys that stay are an error; Windows keeps what another process still maps.
        shutil.rmtree(path, ignore_errors=os.name == "nt")
    lock.close()


def abandoned(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """The folders of dead processes, one by one; each is removed when the next is asked for."""
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            if folder.is_symlink() or not (folder / LOCK).exists():
                continue
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                continue
            lock = lock_file(folder / LOCK)
        except OSError:  # in use, or another process was faster
            continue
        yield folder
        _remove(folder, lock)


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove the folders of dead processes."""
    for _ in abandoned(prefix, parent):
        pass


def end_with(parent: int) -> None:
    """End this process, whatever it is doing, as soon as its parent has ended.

    Linux's PR_SET_PDEATHSIG will not do: it fires when the thread that started a worker ends.

    Args:
        parent: The parent's process id, from the parent: it may be dead before we can ask.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="isfed-orphans").start()


def _watch(parent: int) -> NoReturn:
    process = multiprocessing.parent_process()

    def alive() -> bool:
        if os.name == "nt":  # where a dead parent keeps its number, and can be waited for
            return process is None or process.is_alive()
        return os.getppid() == parent  # an orphan is given another parent

    while alive():
        time.sleep(BETWEEN)
    os._exit(1)
