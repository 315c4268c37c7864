"""Tables that are right or nearly right, as files of every kind, with the options to read them.

A case begins as a good table; up to two things are then done to its cells, to its text or to its
types, to how it is packed and to the options. About a third is
learned from: what is hard for a program lies behind the first check.
"""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from hypothesis import strategies as st
from table_cells import CELLS, COLUMNS, TEXTS, Cells, Draw, as_text, good_rows, plain_type

TASKS = ("regression", "classification")
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252")


@dataclass
class Case:
    """A file, the options, what was done to them, and the words a message may name."""

    name: str
    content: bytes
    options: list[str]
    done: tuple[str, ...] = ()
    words: set[str] = field(default_factory=set)


# ---- Parquet
def _repeat(values: tuple, kind: pa.DataType) -> Callable[[int], pa.Array]:
    return lambda rows: pa.array([values[i % len(values)] for i in range(rows)], kind)


TODAY, NOON = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12)
ZONE = datetime.timezone(datetime.timedelta(hours=5))
TYPES: dict[str, Callable[[int], pa.Array]] = {
    "a list": _repeat(([1, 2], None, []), pa.list_(pa.int64())),
    "a list of a size": _repeat(([1, 2],), pa.list_(pa.int8(), 2)),
    "a struct": _repeat(({"a": 1}, {"a": None}), pa.struct([("a", pa.int64())])),
    "a map": _repeat(([("k", 1)],), pa.map_(pa.string(), pa.int64())),
    "a dictionary of words": lambda rows: _repeat(("u", "v"), pa.string())(
        rows
    ).dictionary_encode(),
    "a dictionary of numbers": lambda rows: _repeat((1.5, 2.5, None), pa.float64())(
        rows
    ).dictionary_encode(),
    "decimals": _repeat(
        (decimal.Decimal("1.50"), decimal.Decimal("-2.25"), decimal.Decimal("3.00")),
        pa.decimal128(10, 2),
    ),
    "large decimals": _repeat(
        (decimal.Decimal(10) ** 40, decimal.Decimal(1)), pa.decimal256(60, 2)
    ),
    "stamps": _repeat((NOON, NOON + datetime.timedelta(hours=3)), pa.timestamp("ns")),
    "stamps with zone": _repeat(
        (NOON.replace(tzinfo=ZONE), NOON.replace(tzinfo=ZONE) + datetime.timedelta(days=1)),
        pa.timestamp("us", "+05:00"),
    ),
    "days": _repeat((TODAY, TODAY + datetime.timedelta(days=400)), pa.date32()),
    "times of day": _repeat((datetime.time(1), datetime.time(2, 30)), pa.time32("s")),
    "durations": _repeat(
        (datetime.timedelta(days=1), datetime.timedelta(seconds=-5)), pa.duration("us")
    ),
    "bytes": _repeat((b"a", b"\xff\x00"), pa.binary()),
    "bytes of a size": _repeat((b"ab", b"cd"), pa.binary(2)),
    "truth values": _repeat((True, False, None), pa.bool_()),
    "nothing": _repeat((None,), pa.null()),
    "half floats": lambda rows: pa.array(np.arange(rows, dtype=np.float16) / 4),
    "large whole numbers": _repeat((2**64 - 1, 0, 2**53 + 1), pa.uint64()),
    "whole numbers with holes": _repeat((1, None, 3), pa.int64()),
    "NaN and infinity": _repeat((1.0, float("nan"), float("inf"), -float("inf")), pa.float64()),
    "large words": _repeat(("u", "v"), pa.large_string()),
    "views of words": _repeat(("u", "v"), pa.string_view()),
    "single precision": _repeat((1e38, -1e38, 1e-45), pa.float32()),
}


def _binary(draw: Draw, cells: Cells, done: list[str]) -> tuple[str, bytes]:
    rows = len(cells["site"])
    columns = {name: plain_type(values) for name, values in cells.items()}
    for _ in range(draw.choice([0, 1, 1, 2])):
        kind = draw.choice(sorted(TYPES))
        columns[draw.choice([*COLUMNS, "dose", "width", "colour"])] = TYPES[kind](rows)
        done.append(f"Parquet with {kind}")
    table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    if draw.randint(0, 15) == 0:
        done.append("doubled columns in Parquet")
        table = pa.Table.from_arrays(
            [*table.columns, table.column(1)], [*table.column_names, "dose"]
        )
    sink = io.BytesIO()
    try:
        if draw.randint(0, 4) == 0:
            feather.write_feather(table, sink)
            return "mine.feather", sink.getvalue()
        pq.write_table(table, sink)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        return "mine.csv", as_text(cells, ",").encode()  # nobody can have such a file
    return "mine.parquet", sink.getvalue()


# ---- how it is packed
def _zipped(name: str, content: bytes, *more: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for inside in (name, *more):
            archive.writestr(inside, content)
    return sink.getvalue()


PACKED: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "gz": lambda name, content: (name + ".gz", gzip.compress(content)),
    "bz2": lambda name, content: (name + ".bz2", bz2.compress(content)),
    "xz": lambda name, content: (name + ".xz", lzma.compress(content)),
    "zip": lambda name, content: (name + ".zip", _zipped(name, content)),
    "gz cut short": lambda name, content: (name + ".gz", gzip.compress(content)[:-9]),
    "gz cut to its head": lambda name, content: (name + ".gz", gzip.compress(content)[:12]),
    "gz that is not": lambda name, content: (name + ".gz", content),
    "gz without a name for it": lambda name, content: (name, gzip.compress(content)),
    "gz and more": lambda name, content: (name + ".gz", gzip.compress(content) + b"more"),
    "gz of gz": lambda name, content: (name + ".gz", gzip.compress(gzip.compress(content))),
    "zip of two": lambda name, content: (name + ".zip", _zipped(name, content, "other.csv")),
    "bz2 cut short": lambda name, content: (name + ".bz2", bz2.compress(content)[:-5]),
    "zip cut short": lambda name, content: (name + ".zip", _zipped(name, content)[:-30]),
    "another suffix": lambda name, content: (
        "mine.parquet" if name.endswith("csv") else "mine.csv",
        content,
    ),
    "an unknown suffix": lambda name, content: ("mine.dat", content),
    "no suffix": lambda name, content: ("mine", content),
    "suffix xlsx": lambda name, content: ("mine.xlsx", content),
    "suffix svm": lambda name, content: ("mine.svm", content),
    "suffix txt": lambda name, content: ("mine.txt", content),
    "empty": lambda name, content: (name, b""),
    "cut by 100 bytes": lambda name, content: (name, content[:-100]),
    "a byte flipped": lambda name, content: (
        name,
        content[:-7] + bytes([content[-7] ^ 255]) + content[-6:] if len(content) > 9 else content,
    ),
}
OPTIONS: tuple[list[str], ...] = (
    ["--missing", "mean"],
    ["--missing", "0"],
    ["--missing", "nan"],
    ["--missing", "1e400"],
    ["--missing", "x"],
    ["--missing", "-1e300"],
    ["--ridge", "0"],
    ["--ridge", "1e300"],
    ["--ridge", "-1"],
    ["--ridge", "nan"],
    ["--ridge", "1e-320"],
    ["--weights", "rows"],
    ["--least-rows", "3"],
    ["--least-rows", "0"],
    ["--least-rows", "99"],
    ["--active", "0"],
    ["--active", "2"],
    ["--active", "4"],
    ["--active", "99"],
    ["--batch-size", "0"],
    ["--batch-size", "1"],
    ["--batch-size", "1000"],
    ["--local-steps", "0"],
    ["--local-steps", "3"],
    ["--categorical", "dose"],
    ["--categorical", "no"],
    ["--drop", "dose"],
    ["--drop", "no"],
    ["--drop", "site"],
    ["--drop", "price"],
    ["--drop", "dose", "--drop", "width", "--drop", "colour"],
    ["--na", "red"],
    ["--na", "0"],
    ["--na", ""],
    ["--separator", ";"],
    ["--separator", "ab"],
    ["--separator", "tab"],
    ["--decimal", "comma"],
    ["--decimal", "x"],
    ["--encoding", "latin-1"],
    ["--encoding", "no"],
    ["--encoding", "utf-16"],
    ["--format", "csv"],
    ["--format", "no"],
)
ASKED = (
    ("colour", "price"),
    ("site", "colour"),
    ("site", "dose"),
    ("price", "site"),
    ("dose", "price"),
    ("site", "site"),
    ("no", "price"),
    ("site", "no"),
    ("site", ""),
    ("SITE", "price"),
)


def cases() -> st.SearchStrategy[Case]:
    """Files and their options; drawn evenly, which Hypothesis alone would not do."""
    return st.randoms(use_true_random=True).map(_case)


def _case(draw: Draw) -> Case:
    """What a number of random draws gives."""
    cells, done = good_rows(draw), []
    task = draw.choice(["regression", "regression", "classification"])
    if task == "classification":
        names = draw.choice([("low", "high"), ("no", "yes"), (0, 1), ("a", "b", "c")])
        cells["price"] = [
            names[int(v > 0) + int(v > 2)] if len(names) > 2 else names[v > 0]
            for v in cells["price"]
        ]
    for name in draw.sample(sorted(CELLS), draw.choice([0, 1, 1, 1, 2])):
        CELLS[name](draw, cells)
        done.append(name)
    if draw.random() < 0.65:
        text = as_text(cells, ",")
        if draw.random() < 0.3:
            name = draw.choice(sorted(TEXTS))
            text = TEXTS[name](text, draw.randint(0, 30))
            done.append(name)
        encoding = draw.choice(ENCODINGS) if draw.random() < 0.1 else "utf-8"
        done += [encoding] if encoding != "utf-8" else []
        file, content = "mine.csv", text.encode(encoding, errors="replace")
    else:
        file, content = _binary(draw, cells, done)
    if draw.random() < 0.12:
        name = draw.choice(sorted(PACKED))
        file, content = PACKED[name](file, content)
        done.append(f"packed: {name}")
    agent, target = draw.choice(ASKED) if draw.random() < 0.1 else ("site", "price")
    task = draw.choice(TASKS) if draw.random() < 0.1 else task
    options = ["--agent", agent, "--target", target, "--task", task]
    if draw.random() < 0.5:
        options += ["--missing", "mean"]
    if draw.random() < 0.25:
        options += draw.choice(OPTIONS)
    words = {file, *cells, *(o for o in options if o and o not in TASKS), "line", "row", "--task"}
    return Case(file, content, options, tuple(done) or ("nothing",), words)
