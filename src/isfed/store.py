"""Arrays on disk that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write to a temporary file beside `path`, then rename; only the owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
            file.flush()
            os.fsync(file.fileno())  # a rename may reach the disk before the data does
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: Path) -> dict[str, np.ndarray]:
    """What `save` wrote; a file that is no such thing is refused with its name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged or was not written by isfed ({error}); remove it to begin anew"
        ) from error
