"""Where compiled code is kept: a folder for each state of a module and of all it compiles in.

Numba alone looks only at the file of a function, and would use a kernel whose parts have changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import re
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime.nrt import rtsys

_PACKAGE = Path(__file__).parents[1]
_CONFIG: Any = numba_config  # its settings are made at run time, unknown to a type checker
_MARK = "\nfrom isfed.base.jit import"  # in every module that compiles
# By pattern: a parser would take 80 ms at every start, for the same answer.
_IMPORT = re.compile(r"^(?:from (isfed[\w.]*) import (\([^)]*\)|.*)|import (isfed[\w.]*))", re.M)
UNUSED_DAYS = 7


class _CheckedFiles(IndexDataCacheFile):
    """Numba's files with a checksum: machine code that is damaged must not be run."""

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        super()._save_data(name, (hashlib.sha256(content).digest(), content))

    def _load_data(self, name: str) -> Any:
        checksum, content = super()._load_data(name)
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(content)


class SafeCache(FunctionCache):
    """Compiled code on disk; what is damaged is compiled again, what cannot be written is not."""

    def __init__(self, function: Callable[..., Any], state: str) -> None:
        super().__init__(function)
        # By content: the time of a source file changes with every checkout.
        base = self._impl.filename_base
        self._cache_file = _CheckedFiles(self.cache_path, base, source_stamp=state)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Not Numba's own, which first registers all that a compiler may need, 0.2 seconds for
        # nothing: where there is no code to load, its compiler registers that itself.
        try:
            rtsys.initialize(target_context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # a file cut short fails in as many ways as there are bytes in it
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception as error:  # a full disk, a file of others: the run goes on
            warnings.warn(
                f"compiled code is not kept, the next start compiles again: {self.cache_path} "
                f"cannot be used ({error}); remove this folder, or set NUMBA_CACHE_DIR to another",
                RuntimeWarning,
                stacklevel=2,
            )


def cache_of(function: Callable[..., Any]) -> SafeCache | None:
    """The cache of one function; None where there is no folder to write to."""
    folder = folder_of(function.__code__.co_filename)
    if folder is None:
        return None
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = str(folder)  # read by Numba in the next line
    try:
        return SafeCache(function, folder.name)
    except (OSError, RuntimeError):
        return None
    finally:
        _CONFIG.CACHE_DIR = before


@functools.cache
def folder_of(file: str) -> Path | None:
    """The folder for what a module compiles in its present state."""
    digest = hashlib.sha256(numba.__version__.encode())
    try:
        for path in sorted(sources_of(Path(file))):
            digest.update(_text(path).encode())
    except OSError:  # typed at a prompt: there is no file
        return None
    for parent in _parents():
        folder = parent / f"compiled-{Path(file).stem}-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)  # in use
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            _remove_unused(parent)
            return folder
    return None


def _parents() -> list[Path]:
    """Folders that may keep compiled code, best first."""
    if _CONFIG.CACHE_DIR:  # NUMBA_CACHE_DIR
        return [Path(_CONFIG.CACHE_DIR)]
    folders = [_PACKAGE / "__pycache__"]
    # Where nobody knows the user there is no home: then only the first will do.
    with contextlib.suppress(RuntimeError):
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        folders.append(user_cache / "isfed")
    return folders


@functools.cache
def _remove_unused(parent: Path) -> None:
    """Remove the folders that no process has used for a week."""
    for folder in parent.glob("compiled-*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)


def sources_of(file: Path) -> set[Path]:
    """The file of a module, and of the modules it imports, of compiled ones again, and so on.

    A module that compiles nothing may still give a constant, which is compiled in.
    """
    sources, waiting = set(), [file]
    while waiting:
        path = waiting.pop()
        if path not in sources and (path == file or _compiles(path)):
            waiting += _imports(path)
        sources.add(path)
    return sources


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _imports(path: Path) -> list[Path]:
    """The modules of ours that a file imports, but for those that only give plain functions."""
    names: set[str] = set()
    for origin, imported, plain in _IMPORT.findall(_text(path)):
        names |= {f"{origin}.{name}" for name in re.findall(r"\w+", imported)}
        # Compiled code can use constants and records of others, and functions if compiled.
        if plain or imported != imported.lower() or _compiles(_file(origin)):
            names.add(origin or plain)
    return [file for file in map(_file, names) if file.is_file()]


def _file(name: str) -> Path:
    """Where a module of ours is, unless it is a package."""
    return _PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")


def _compiles(path: Path) -> bool:
    return path.is_file() and (path.name == "jit.py" or _MARK in _text(path))
