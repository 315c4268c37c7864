"""Packed files: what is inside, by the suffix."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from isfed.base.atomic_files import check_unpacked, declared_size

PIECE = 1 << 24  # bytes unpacked between two looks at the limit
_OPENERS: dict[str, Any] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda file: pa.CompressedInputStream(file, "zstd"),
}
PACKED = (*_OPENERS, ".zip")


class RefusedFileError(ValueError):
    """A file that is whole but not taken: it unpacks to too much, or to several files."""


def unpacked(path: Path, most_gigabytes: float | None = None) -> bytes:
    """The content of a file, unpacked if its suffix is one of `PACKED`.

    A ValueError is raised as soon as it is more than `most_gigabytes`; unless given, more than 1 GB
    and more than 20 times the file.
    """
    suffix = path.suffix.lower()
    if suffix not in PACKED:
        return path.read_bytes()
    try:
        with path.open("rb") as file:
            if suffix == ".zip":
                return _only_member(path, file, most_gigabytes)
            content = io.BytesIO()
            with _OPENERS[suffix](file) as stream:
                while piece := stream.read(PIECE):
                    check_size(path, content.tell() + len(piece), most_gigabytes)
                    content.write(piece)
            return content.getvalue()
    except RefusedFileError:
        raise
    except (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be unpacked ({error}); is the file complete? Fetch it again"
        ) from error


def check_size(path: Path, size: int, most_gigabytes: float | None) -> None:
    """Refuse a file that unpacks to too many bytes, as far as their number is known."""
    try:
        check_unpacked(size, path.stat().st_size, most_gigabytes)
    except ValueError as error:
        enough = 2 * math.ceil(size / 1e9)
        raise RefusedFileError(
            f"{path}: {error}; if the file is right, allow more, e.g. most_gigabytes={enough}"
        ) from None


def _members(archive: zipfile.ZipFile) -> list[str]:
    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    return [name for name in names if not name.startswith("__MACOSX/")]  # what macOS adds


def _only_member(path: Path, file: Any, most_gigabytes: float | None) -> bytes:
    with zipfile.ZipFile(file) as archive:
        check_size(path, declared_size(archive), most_gigabytes)
        names = _members(archive)
        if len(names) != 1:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise RefusedFileError(
                f"{path} holds {len(names)} files ({shown}), expected one; unpack it and name the "
                "file that is meant"
            )
        return archive.read(names[0])


def inner_name(path: Path) -> str:
    """The name that the unpacked file has: inside a zip file its own, else without the suffix.

    >>> inner_name(Path("visits.csv.gz"))
    'visits.csv'
    """
    if path.suffix.lower() not in PACKED:
        return path.name
    if path.suffix.lower() == ".zip" and "." not in path.stem:
        try:
            with zipfile.ZipFile(path) as archive:
                names = _members(archive)
        except (OSError, zipfile.BadZipFile):
            return path.stem  # reading it will say what is wrong
        return Path(names[0]).name if len(names) == 1 else path.stem
    return path.stem


def stem(path: Path) -> str:
    """The name of a file without its suffixes.

    >>> stem(Path("data/visits.csv.gz")), stem(Path("visits.2024.csv"))
    ('visits', 'visits.2024')
    """
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem
