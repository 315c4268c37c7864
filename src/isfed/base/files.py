"""Files that are at every moment the old ones or the new ones, never a part."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TextIO

import numpy as np

OWNER_ONLY = 0o600
PART = ".part"  # the end of the name of a file that is not whole yet


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write to a temporary file beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a rename may reach the disk before the data does
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def hold(path: Path) -> TextIO:
    """Lock a file for as long as what is returned stays open; BlockingIOError if another does.

    The system lets go of the lock when a process dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path, "w")  # noqa: SIM115 (open is what holds it)
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; there two runs are the user's care
        return lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise
    return lock


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays that only the owner can read."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_whole(path, buffer.getvalue(), mode=OWNER_ONLY)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote; a file that is no such thing is refused with its name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or was not written by isfed ({error}); remove it to begin anew"
        ) from error


def check_form(given: dict[str, np.ndarray], expected: dict[str, np.ndarray], *, what: str) -> None:
    """Raise a ValueError unless the arrays have the names, shapes and types of `expected`.

    Numbers have to be finite where those of `expected` are.
    """
    for name, like in expected.items():
        found = given.get(name)
        if found is None:
            raise ValueError(f"{what} has no array {name!r}; remove it to begin anew")
        same = found.dtype.kind == "U" if like.dtype.kind == "U" else found.dtype == like.dtype
        if found.shape != like.shape or not same:
            raise ValueError(
                f"{what} holds {name} of shape {found.shape} and type {found.dtype}, expected "
                f"{like.shape} and {like.dtype}; remove it to begin anew"
            )
        if like.dtype.kind == "f" and np.isfinite(like).all() and not np.isfinite(found).all():
            raise ValueError(f"{what} holds {name} with numbers that are not finite")
