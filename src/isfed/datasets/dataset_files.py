"""Files of data: unpacked by their suffix, looked for in the user's folders, fetched if absent."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import math
import os
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
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
VARIABLE = "ISFED_DATA"


class DataMissingError(FileNotFoundError):
    """A file is in none of the folders and could not be fetched."""


@dataclass(frozen=True)
class File:
    """One file of a data set, and how to know it again."""

    folder: str  # the data set's
    name: str
    sha256: str  # of the content, unpacked: the packing may differ from copy to copy
    urls: Sequence[str]


def cache_folder() -> Path:
    """Where fetched files are kept."""
    return Path(platformdirs.user_cache_dir("isfed", appauthor=False)) / "data"


def search_folders(data_dir: str | Path | None) -> list[Path]:
    """The explicit folder, then $ISFED_DATA, then the user's cache."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise FileNotFoundError(f"there is no folder {data_dir}; create it or name another")
    given = (data_dir, os.environ.get(VARIABLE) or None)
    return [*(Path(folder) for folder in given if folder is not None), cache_folder()]


def find_file(folder: str, names: Sequence[str], data_dir: str | Path | None) -> Path | None:
    """The first of these files that is in one of the folders, or in the data set's folder there."""
    places = (place for home in search_folders(data_dir) for place in (home / folder, home))
    paths = (place / name for place in places for name in names)
    return next((path for path in paths if path.is_file()), None)


def missing_file(file: File, home: Path, data_dir: str | Path | None, why: str) -> DataMissingError:
    """What to do about a file that is in none of the folders; `home` is where it should be."""
    looked = ", ".join(str(folder / file.folder) for folder in search_folders(data_dir))
    return DataMissingError(
        f"{file.name} was not found (looked in {looked}){why}. Get {file.urls[0]} on a machine "
        f"with a network and put it at {home / file.name}, or set {VARIABLE} to the folder that "
        f"has {file.folder}/{file.name}"
    )


def content_of(file: File, data_dir: str | Path | None = None) -> tuple[Path, bytes]:
    """The file's path and its unpacked content, checked; fetched first if it is nowhere.

    It is fetched into the explicit folder if one is given, else into the user's cache.
    """
    path = find_file(file.folder, [file.name], data_dir)
    if path is not None:
        return path, checked_content(file, path)
    home = (Path(data_dir) if data_dir is not None else cache_folder()) / file.folder
    try:
        path = fetch(file, home)
    except OSError as error:
        why = f" and could not be fetched: {error}"
        raise missing_file(file, home, data_dir, why) from error
    return path, unpacked(path)


def checked_content(file: File, path: Path) -> bytes:
    """The unpacked content, if it is what it should be."""
    content = unpacked(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != file.sha256:
        raise ValueError(
            f"{path} is not the {file.name} that is expected: the sha256 of its content is "
            f"{sha256}, not {file.sha256}; remove it and get it again from {file.urls[0]}"
        )
    return content


def fetch(file: File, home: Path) -> Path:
    """Download a file into a folder; it appears there only when it is complete and checked."""
    from rich.progress import wrap_file  # takes a while to import

    home.mkdir(parents=True, exist_ok=True)
    faults = []
    for url in file.urls:
        try:
            with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
                part = Path(folder) / file.name
                with (
                    part.open("wb") as sink,
                    urllib.request.urlopen(url, timeout=20.0) as answer,
                    wrap_file(
                        answer,
                        int(answer.headers.get("Content-Length") or 0),
                        description=f"fetching {file.name}",
                        transient=True,
                    ) as source,
                ):
                    shutil.copyfileobj(source, sink)
                checked_content(file, part)
                return part.replace(home / file.name)
        except (OSError, ValueError) as error:  # URLError is an OSError
            faults.append(f"{url}: {getattr(error, 'reason', error)}")
    raise OSError("; ".join(faults))


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
