"""How the library compiles: one place for the options of Numba.

`compiled` is for what is called from Python, `inlined` for what compiled code calls in its loops:
without it Numba hands every array over as seven words and counts references at every call; every
level of inlining is compiled once more, so `called` stands where a call costs nothing beside the
work. All cache on disk, release the interpreter's lock and divide as the hardware does. None allows
reordering of floating-point sums: a result is the same whichever function it was inlined into.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config

_PACKAGE = Path(__file__).parents[1]


def _cache_folder() -> Path | None:
    """Where compiled code is kept: one folder for each state of the sources that are compiled.

    Numba alone looks at the file of the function itself, not at the files of what it calls, and
    would go on using a kernel whose parts have changed.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if b"isfed.base.compiled" in source:
            digest.update(source)
    name = f"compiled-{digest.hexdigest()[:16]}"
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    for parent in (_PACKAGE / "__pycache__", user_cache / "isfed"):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(parent / name, os.W_OK):
            _remove_old(parent, keep=name)
            return parent / name
    return None


def _remove_old(parent: Path, *, keep: str) -> None:
    """Remove the folders of earlier sources that nobody has written to for a week."""
    week_ago = time.time() - 7 * 86400
    for folder in parent.glob("compiled-*"):
        if folder.name != keep and folder.stat().st_mtime < week_ago:
            shutil.rmtree(folder, ignore_errors=True)


_FOLDER = _cache_folder()
_CONFIG: Any = numba_config  # its settings are made at run time, unknown to a type checker


def _jit(function: Callable[..., Any], **options: Any) -> Any:
    before = _CONFIG.CACHE_DIR
    if _FOLDER is not None and not before:
        _CONFIG.CACHE_DIR = str(_FOLDER)  # read by Numba while it decorates
    try:
        return numba.njit(
            function, cache=_FOLDER is not None, nogil=True, error_model="numpy", **options
        )
    finally:
        _CONFIG.CACHE_DIR = before


def compiled(function: Callable[..., Any]) -> Any:
    """Compile what Python calls."""
    return _jit(function)


def called(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls now and then: a call of its own, no reference counts."""
    return _jit(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile what compiled code calls: inlined everywhere, no reference counts, no allocation."""
    return _jit(function, forceinline=True, _nrt=False)
