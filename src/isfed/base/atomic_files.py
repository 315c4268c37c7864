"""Files that are at every moment the old ones or the new ones, never a part."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

OWNER_ONLY = 0o600
CHECKSUM = "checksum"  # the name of an array
PART = ".part"  # the end of the name of a file that is not whole yet
TRIES = 3  # to write a file, while others take what is not whole yet for a dead process's
WINDOWS = os.name == "nt"
USUAL_GIGABYTES = 1.0  # that any file may unpack to, however small it is
USUAL_TIMES = 20  # its own size that a file may unpack to: tables shrink 3 to 10 times
PATIENCE = (0.01, 0.05, 0.2, 0.5)  # seconds between two tries to rename, on Windows


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write to a temporary file beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES - 1):
        with contextlib.suppress(FileNotFoundError):  # another process cleared it away
            return _write(path, content, mode)
    _write(path, content, mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a rename may reach the disk before the data does
        os.chmod(name, mode)
        _put_in_place(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _put_in_place(name: str, path: Path) -> None:
    """Rename over `path`; on Windows that fails while somebody reads `path`, so try again."""
    for pause in PATIENCE if WINDOWS else ():
        try:
            return os.replace(name, path)
        except PermissionError:
            time.sleep(pause)
    os.replace(name, path)


def lock_file(path: Path) -> TextIO:
    """Lock a file until the returned file is closed; BlockingIOError if it is locked already.

    The system releases the lock when a process dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = open(path, "a", encoding="utf-8")  # noqa: SIM115 (the open file is what holds the lock)
    try:
        _lock(lock)
    except OSError:
        lock.close()
        raise
    return lock


def _lock(file: TextIO) -> None:
    if not WINDOWS:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    file.seek(0)  # a lock is on bytes from the present position; all have to take the same one
    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    except OSError as error:  # "Permission denied" when another process holds it
        raise BlockingIOError(error.errno, f"{file.name} is locked") from error


def clear_parts(folder: Path) -> None:
    """Remove what a killed process was writing beside its place."""
    for path in folder.glob(f".*{PART}"):
        path.unlink(missing_ok=True)


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as the content of a file, with a checksum; equal arrays make equal bytes."""
    buffer = io.BytesIO()
    content: Any = {**arrays, CHECKSUM: np.array(_checksum(arrays))}
    np.savez(buffer, **content)
    return buffer.getvalue()


def most_unpacked(packed: int, gigabytes: float | None = None) -> int:
    """The bytes that a file of `packed` bytes may unpack to; unless `gigabytes` says, the usual.

    >>> most_unpacked(2_000_000), most_unpacked(300_000_000), most_unpacked(10, 0.5)
    (1000000000, 6000000000, 500000000)
    """
    if gigabytes is not None:
        return int(1e9 * gigabytes)
    return max(int(1e9 * USUAL_GIGABYTES), USUAL_TIMES * packed)


def check_unpacked(unpacked: int, packed: int, gigabytes: float | None = None) -> None:
    """Raise a ValueError if a file of `packed` bytes unpacks to too much."""
    most = most_unpacked(packed, gigabytes)
    if unpacked > most:
        raise ValueError(
            f"{packed / 1e6:.3g} MB unpack to {unpacked / 1e9:.3g} GB or more, and "
            f"{most / 1e9:.3g} GB are allowed"
        )


def declared_size(archive: zipfile.ZipFile) -> int:
    """What an archive says that it unpacks to; Python never reads more than it says."""
    return sum(entry.file_size for entry in archive.infolist())


def unpack_arrays(content: bytes | Path) -> dict[str, np.ndarray]:
    """What `pack_arrays` packed; a ValueError if it is anything else."""
    try:
        source = io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb")  # noqa: SIM115
        with source, np.load(source) as file:  # which leaves a damaged file open
            check_unpacked(declared_size(file.zip), source.seek(0, os.SEEK_END))
            arrays = {name: file[name] for name in file.files}
        given = str(arrays.pop(CHECKSUM))
    except KeyError:
        raise ValueError("it has no checksum") from None
    except (ValueError, EOFError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    except (zipfile.BadZipFile, zlib.error, MemoryError, SyntaxError) as error:
        raise ValueError(f"{error or type(error).__name__}") from error
    if given != _checksum(arrays):
        raise ValueError("its checksum does not match")
    return arrays


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Of names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.tobytes() if array.dtype.kind == "U" else array.reshape(-1).data)
    return digest.hexdigest()


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays that only the owner can read."""
    write_whole(path, pack_arrays(arrays), mode=OWNER_ONLY)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote; a file that is no such thing is refused with its name."""
    try:
        return unpack_arrays(path)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged or was not written by isfed ({error}); remove it to start again"
        ) from error


def check_form(given: dict[str, np.ndarray], expected: dict[str, np.ndarray], *, what: str) -> None:
    """Raise a ValueError unless the arrays have the names, shapes and types of `expected`.

    Numbers have to be finite where those of `expected` are.
    """
    for name, like in expected.items():
        array = given.get(name)
        if array is None:
            raise ValueError(f"{what} has no array {name!r}; remove it to start again")
        same = array.dtype.kind == "U" if like.dtype.kind == "U" else array.dtype == like.dtype
        if array.shape != like.shape or not same:
            raise ValueError(
                f"{what} holds {name} of shape {array.shape} and type {array.dtype}, expected "
                f"{like.shape} and {like.dtype}; remove it to start again"
            )
        if like.dtype.kind == "f" and np.isfinite(like).all() and not np.isfinite(array).all():
            raise ValueError(f"{what} holds {name} with numbers that are not finite")


def check_like(name: str, given: np.ndarray, fresh: np.ndarray, *, grows: bool = False) -> None:
    """Refuse an array of another type or shape; one that `grows` may have begun empty."""
    begun = grows and fresh.size == 0 and given.shape[1:] == fresh.shape[1:]
    if given.dtype != fresh.dtype or not (given.shape == fresh.shape or begun):
        raise ValueError(
            f"{name} is {given.dtype} of shape {given.shape}, expected {fresh.dtype} of shape "
            f"{fresh.shape}"
        )


def restore_array(target: np.ndarray, name: str, state: Mapping[str, np.ndarray]) -> None:
    """Copy an array of a state into its place, which it must fit; a KeyError if it is absent."""
    check_like(name, state[name], target)
    target[...] = state[name]


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people to read; null stands for what JSON has no word for, such as nan."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False)
    write_whole(path, f"{text}\n".encode())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; a ValueError with the file's name if it holds none."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged (a {type(value).__name__} instead of an object)")
    return value


def write_columns(path: Path, columns: Mapping[str, Any]) -> None:
    """Write a Parquet file of columns of equal length, with a checksum of what is in them."""
    import pyarrow as pa  # here, because an import of PyArrow takes a while
    import pyarrow.parquet as pq

    # What is not known is absent in the file, not a number that is none.
    table = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    sink = io.BytesIO()
    # Page checksums do not cover the headers, by which a flipped byte can change numbers as well.
    marked = table.replace_schema_metadata({CHECKSUM: _checksum(_texts(_arrays(table)))})
    pq.write_table(marked, sink, write_page_checksum=True)
    write_whole(path, sink.getvalue())


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a Parquet file; a ValueError with its name if it is no such thing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():  # which would be read as a table in parts, of none
        raise ValueError(f"{path} is damaged (a folder where a file should be)")
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        columns = _arrays(table)
    except (ValueError, OSError, pa.ArrowException) as error:  # names need not be UTF-8 any more
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", None) is not None:
            raise  # of the disk, not of the content
        raise ValueError(f"{path} is damaged ({error})") from error
    given = (table.schema.metadata or {}).get(CHECKSUM.encode())  # earlier versions wrote none
    if given is not None and given.decode(errors="replace") != _checksum(_texts(columns)):
        raise ValueError(f"{path} is damaged (its checksum does not match)")
    # Earlier versions wrote a column of which nothing is known without the type of numbers.
    unknown = [field.name for field in table.schema if pa.types.is_null(field.type)]
    return columns | {name: np.full(len(table), np.nan) for name in unknown}


def _arrays(table: Any) -> dict[str, np.ndarray]:
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _texts(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with words of a fixed length instead of objects, which have no bytes."""
    return {n: c.astype(str) if c.dtype.kind == "O" else c for n, c in columns.items()}
