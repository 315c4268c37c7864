"""Packed files: what is inside, by the suffix."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def unpacked(path: Path) -> bytes:
    """The content of a file, unpacked if its suffix is one of `PACKED`."""
    packed = path.read_bytes()
    suffix = path.suffix.lower()
    try:
        if suffix == ".bz2":
            return bz2.decompress(packed)
        if suffix == ".gz":
            return gzip.decompress(packed)
        if suffix == ".xz":
            return lzma.decompress(packed)
        if suffix == ".zst":
            return pa.CompressedInputStream(io.BytesIO(packed), "zstd").read()
        if suffix == ".zip":
            return _only_member(path, packed)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile) as error:
        if isinstance(error, SeveralFilesError):
            raise
        raise ValueError(
            f"{path} cannot be unpacked ({error}); is the file complete? Fetch it again"
        ) from error
    return packed


class SeveralFilesError(ValueError):
    """A zip file from which one table has to be chosen."""


def _members(archive: zipfile.ZipFile) -> list[str]:
    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    return [name for name in names if not name.startswith("__MACOSX/")]  # what macOS adds


def _only_member(path: Path, packed: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = _members(archive)
        if len(names) != 1:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise SeveralFilesError(
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
    inside = path.name[: -len(path.suffix)]
    if path.suffix.lower() == ".zip" and "." not in inside:
        try:
            with zipfile.ZipFile(path) as archive:
                names = _members(archive)
        except (OSError, zipfile.BadZipFile):
            return inside  # reading it will say what is wrong
        return Path(names[0]).name if len(names) == 1 else inside
    return inside


def stem(path: Path) -> str:
    """The name of a file without its suffixes.

    >>> stem(Path("data/visits.csv.gz")), stem(Path("visits.2024.csv"))
    ('visits', 'visits.2024')
    """
    packed = path.suffix.lower() in PACKED
    return path.with_suffix("").stem if packed else path.stem
