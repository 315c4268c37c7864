"""Packed files and wide tables are read up to a limit, and no further."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isfed.base import atomic_files
from isfed.base.atomic_files import load_arrays, pack_arrays
from isfed.datasets import read_table
from isfed.datasets.dataset_files import RefusedFileError, unpacked
from isfed.datasets.read_options import Reading
from isfed.datasets.table_data import Columns
from isfed.datasets.table_sources import open_source
from isfed.studies.neural_network_config import read_rows

PART, PARTS = 1 << 25, 30  # 1 GB in all
LIMIT = 0.1  # gigabytes
ROOM = 4e8  # bytes: what is kept up to the limit, and one more copy of it


def _zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


PACKERS = {
    ".gz": lambda content: gzip.compress(content, 6),
    ".bz2": bz2.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
    ".zst": _zstd,
}


def bomb(path, suffix):
    """A small file that unpacks to a gigabyte; packed parts may stand one after the other."""
    if suffix == ".zip":
        archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        with archive, archive.open("bomb.csv", "w") as file:
            for _ in range(PARTS // 5):
                file.write(bytes(PART))
    else:
        path.write_bytes(PACKERS[suffix](bytes(PART)) * PARTS)
    assert path.stat().st_size < 2e6
    return path


@pytest.fixture
def bounded(monkeypatch):
    """A smaller limit than the usual, and little room above it."""
    monkeypatch.setattr(atomic_files, "USUAL_GIGABYTES", LIMIT)
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < ROOM


@pytest.mark.parametrize("suffix", [*PACKERS, ".zip"])
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, bounded, suffix):
    path = bomb(tmp_path / f"bomb.csv{suffix}", suffix)
    for read in (unpacked, open_source):
        with pytest.raises(RefusedFileError) as caught:
            read(path)
        for said in (str(path), "MB unpack to 0.", "0.1 GB are allowed", "most_gigabytes=2"):
            assert said in str(caught.value)


@pytest.mark.parametrize("suffix", PACKERS)
def test_what_is_within_the_limit_is_read_whole(tmp_path, suffix):
    content = bytes(range(256)) * 40_000
    path = tmp_path / f"x{suffix}"
    path.write_bytes(PACKERS[suffix](content[:900_000]) + PACKERS[suffix](content[900_000:]))
    assert unpacked(path, 0.01024) == content
    with pytest.raises(RefusedFileError, match=r"and 0\.0102 GB are allowed"):
        unpacked(path, 0.0102)


def test_large_files_may_unpack_to_more(monkeypatch):
    assert atomic_files.most_unpacked(10**9) == 20 * 10**9
    assert atomic_files.most_unpacked(10**9, 0.5) == 5 * 10**8


def test_arrays_that_unpack_to_much_are_refused(tmp_path, bounded):
    x = np.zeros((500, 40_000), np.uint8)
    many: Any = {f"x{i}": x for i in range(15)} | {"x": x, "y": np.arange(500) % 2}
    np.savez_compressed(tmp_path / "rows.npz", **many)
    assert (tmp_path / "rows.npz").stat().st_size < 2e6
    with pytest.raises(
        RefusedFileError, match=r"rows\.npz: .*unpack to 0\.32 GB.*most_gigabytes=2"
    ):
        read_rows(tmp_path / "rows.npz")
    with pytest.raises(ValueError, match=r"rows\.npz is damaged or was not.*0\.1 GB are allowed"):
        load_arrays(tmp_path / "rows.npz")


def test_checkpoints_of_any_size_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(
        atomic_files, "USUAL_GIGABYTES", 1e-6
    )  # they are not packed: far from 20 times
    (tmp_path / "x.npz").write_bytes(pack_arrays({"a": np.zeros(100_000)}))
    assert load_arrays(tmp_path / "x.npz")["a"].size == 100_000


def test_equal_values_of_a_parquet_file_count_as_what_they_take_in_memory(tmp_path, bounded):
    rows = 5_000_000
    values = pa.array(np.zeros(rows))
    pq.write_table(pa.table({"a": values, "b": values, "c": values}), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 1e5
    with pytest.raises(RefusedFileError, match=r"x\.parquet: .*unpack to 0\.12 GB"):
        open_source(tmp_path / "x.parquet")
    table = open_source(tmp_path / "x.parquet", Reading(most_gigabytes=0.2)).table
    assert table.num_rows == rows


def test_an_excel_file_is_an_archive_too(tmp_path, bounded):
    bomb(tmp_path / "x.xlsx", ".zip")
    with pytest.raises(RefusedFileError, match=r"x\.xlsx: .*most_gigabytes"):
        open_source(tmp_path / "x.xlsx")


def _wide(columns: int) -> dict[str, list]:
    return {"who": ["a", "a", "b", "b"]} | {f"x{i}": [i, 2, 3, 5] for i in range(columns - 1)}


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "feather", "svm", "table"])
def test_a_table_of_too_many_columns_is_refused(tmp_path, form):
    table = pa.table(_wide(10_001))
    path = tmp_path / f"wide.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "feather":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif form == "svm":
        path.write_text("1 1:2 10000:3\n")
    elif form != "table":
        lines = [table.column_names, *(map(str, row.values()) for row in table.to_pylist())]
        text = "\n".join(",".join(line) for line in lines)
        path.write_bytes(gzip.compress(text.encode()) if form == "csv.gz" else text.encode())
    with pytest.raises(ValueError, match=r"has 10001 columns, more than the 10000 .*=10001"):
        open_source(table if form == "table" else path)
    allowed = Reading(most_columns=10_001)
    found = open_source(table if form == "table" else path, allowed).table
    assert found.num_columns == 10_001


def test_signs_in_the_name_of_a_column_are_not_columns(tmp_path):
    (tmp_path / "x.csv").write_text('who,"a,b",y\nu,1,2\nu,2,3\nv,3,4\nv,4,4\n')
    assert open_source(tmp_path / "x.csv", Reading(most_columns=3)).table.num_columns == 3
    table = read_table(tmp_path / "x.csv", Columns(agent="who", target="y"))
    assert table.features == ("a,b", "(intercept)")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "much"])
@pytest.mark.parametrize("name", ["most_gigabytes", "most_columns"])
def test_limits_that_are_none(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        Reading(**{name: value})


def test_a_file_cut_short_is_still_said_to_be_damaged(tmp_path):
    for suffix, pack in PACKERS.items():
        path = tmp_path / f"x.csv{suffix}"
        path.write_bytes(pack(np.random.default_rng(0).bytes(50_000))[:-9])
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpacked(path)
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        unpacked(tmp_path / "x.zip")
