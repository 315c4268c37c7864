"""The files of data sets: found in the user's folders, or fetched from their public home."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from rich.progress import wrap_file

from isfed.datasets.compression import unpacked

VARIABLE = "ISFED_DATA"
TIMEOUT = 20.0  # seconds without an answer


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
    folders = []
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise FileNotFoundError(f"there is no folder {data_dir}; create it or name another")
        folders.append(Path(data_dir))
    if os.environ.get(VARIABLE):
        folders.append(Path(os.environ[VARIABLE]))
    return [*folders, cache_folder()]


def find_file(folder: str, names: Sequence[str], data_dir: str | Path | None) -> Path | None:
    """The first of these files that is in one of the folders, or in the data set's folder there."""
    for home in search_folders(data_dir):
        for path in (place / name for place in (home / folder, home) for name in names):
            if path.is_file():
                return path
    return None


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
        looked = ", ".join(str(folder / file.folder) for folder in search_folders(data_dir))
        raise DataMissingError(
            f"{file.name} was not found (looked in {looked}) and could not be fetched: {error}. "
            f"Get {file.urls[0]} on a machine with a network and put it at {home / file.name}, "
            f"or set {VARIABLE} to the folder that has {file.folder}/{file.name}"
        ) from error
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
    home.mkdir(parents=True, exist_ok=True)
    faults = []
    for url in file.urls:
        try:
            with tempfile.TemporaryDirectory(dir=home, prefix=".") as folder:
                part = Path(folder) / file.name
                with (
                    part.open("wb") as sink,
                    urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
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
