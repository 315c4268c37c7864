"""Tables that are right or nearly right, as files of every kind, with the options to read them.

A case begins as a good table; up to two things are then done to its cells, to its text or to its
types, to how it is packed and to the options. Most cases are therefore read, and many are learned
from: what is hard for a program lies behind the first check.
"""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import lzma
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from hypothesis import strategies as st

SITES = ("north", "south", "east", "west")
COLUMNS = ("site", "dose", "width", "colour", "price")
MISSING = (
    "nan", "NaN", "NAN", "inf", "-inf", "Infinity", "+INF", "#N/A", "N/A", "NA", "n/a", "null", "NULL",
    "None", "", " ", "-", "?", ".", "1.#QNAN", "1.#INF", "-nan(ind)", "∞", "missing", "#DIV/0!", "NaT",
)  # fmt: skip
NUMERALS = (
    "10" * 15, str(2**63), str(-(2**63)), str(2**64), "9" * 400, "1e308", "-1e308", "1e309", "5e-324",
    "1e-400", "0x10", "1_000", "1,5", "1.234,5", "1 000", "1\u00a0000", "\u22125", "\u0663", "\uff11\uff12",
    "--5", "+5", "5-", "1e", ".5", "5.", "$5", "5 %", "(5)", "1/2", "1e5e5", "1.2.3", "TRUE", "-0", "00012",
)  # fmt: skip
DATES = (
    "2024-02-29", "2023-02-29", "29/02/2024", "02/29/2024", "2024-01-01T12:00:00Z", "12:30",
    "2024-01-01 12:00:00+05:30", "9999-12-31", "0001-01-01", "1.1.24", "Jan 5, 2024", "2024-W05",
)  # fmt: skip
WORDS = (
    "ß", "e\u0301", "\u00e9", "\u202eabc", "\U0001f600", "a\tb", 'a"b', "a,b", "a;b", "line\nbreak", "[red]",
    "[/red]", "{x}", "%s", "\\", "'", "=1+1", "nan", "x" * 5000, "\ufeff", "\u200b", "\x07", "None", "*",
)  # fmt: skip
TASKS = ("regression", "classification")


@dataclass
class Case:
    """A file, the options, what was done to them, and the words a message may name."""

    name: str
    content: bytes
    options: list[str]
    done: tuple[str, ...] = ()
    words: set[str] = field(default_factory=set)


Cells = dict[str, list[Any]]
Draw = random.Random


def _rows(draw: Draw) -> Cells:
    """A good table: four agents of unlike sizes, two numbers, a word and a target."""
    sizes = draw.choice([(6, 5, 4, 3), (12, 2, 2, 2), (3, 3, 3, 3), (20, 10, 5, 2)])
    rng = np.random.default_rng(draw.randint(0, 50))
    rows = sum(sizes)
    dose, width = rng.normal(size=(2, rows)).round(3)
    price = (2.0 * dose - width + rng.normal(size=rows) * 0.3).round(3)
    return {
        "site": [site for site, size in zip(SITES, sizes, strict=True) for _ in range(size)],
        "dose": dose.tolist(),
        "width": width.tolist(),
        "colour": [("red", "blue", "green")[i] for i in rng.integers(0, 3, rows)],
        "price": price.tolist(),
    }


def _some(draw: Draw, cells: Cells, choices: tuple, columns: tuple[str, ...] = COLUMNS) -> None:
    """Put one or several of the choices into a column."""
    name = draw.choice(columns)
    count = draw.choice([1, 1, 2, 3, len(cells[name])])
    for _ in range(count):
        at = draw.randint(0, len(cells[name]) - 1)
        cells[name][at] = draw.choice(choices)


def _whole(draw: Draw, cells: Cells, choices: tuple, columns: tuple[str, ...] = COLUMNS) -> None:
    """Fill a column with two of the choices."""
    name = draw.choice(columns)
    two = [draw.choice(choices) for _ in range(2)]
    cells[name] = [two[i % 2] for i in range(len(cells[name]))]


def _sites(draw: Draw, cells: Cells) -> None:
    rows = len(cells["site"])
    sites: list[list] = [
        ["only"] * rows, [f"s{i}" for i in range(rows)], ["alone", *cells["site"][1:]],
        [i % 3 for i in range(rows)], [i % 3 + 0.5 for i in range(rows)], [""] * rows,
        [("é", "e\u0301")[i % 2] for i in range(rows)], [("A", "a", " a", "a ")[i % 4] for i in range(rows)],
        [(1, "1", 1.0, "01")[i % 4] for i in range(rows)], [10**30 + i % 2 for i in range(rows)],
        [(True, False)[i % 2] for i in range(rows)], [f"2024-01-0{1 + i % 3}" for i in range(rows)],
    ]  # fmt: skip
    cells["site"] = draw.choice(sites)


def _targets(draw: Draw, cells: Cells) -> None:
    rows = len(cells["price"])
    targets: list[list] = [
        [0.0] * rows, [7.25] * rows, [float(i % 2) for i in range(rows)], [i % 3 for i in range(rows)],
        [f"class {i % 5}" for i in range(rows)], [f"id{i}" for i in range(rows)],
        [0.0] * (rows - 1) + [1.0], ["yes"] * rows, [(True, False)[i % 2] for i in range(rows)],
        list(cells["dose"]), [("1", "1.0", "2")[i % 3] for i in range(rows)], [1e-310] * rows,
        ["yes" if site == "north" else "no" for site in cells["site"]],
    ]  # fmt: skip
    cells["price"] = draw.choice(targets)


def _scale(draw: Draw, cells: Cells) -> None:
    """Numbers of another size: squares leave every bound, or vanish."""
    factor = draw.choice([1e-320, 1e-200, 1e-30, 1e15, 1e80, 1e160, 1e200, 1e300])
    name = draw.choice(["dose", "width", "price"])
    cells[name] = [v * factor if isinstance(v, float) else v for v in cells[name]]


def _degenerate(draw: Draw, cells: Cells) -> None:
    name = draw.choice(["dose", "width", "colour"])
    rows = len(cells[name])
    filled: list[list] = [
        [1.0] * rows, [None] * rows, list(cells["dose"]), list(cells["price"]), [0.0] * (rows - 1) + [1e12],
        [f"w{i}" for i in range(rows)], list(range(rows)), [cells["site"][i] for i in range(rows)],
        [1e16 + i for i in range(rows)],
    ]  # fmt: skip
    cells[name] = draw.choice(filled)


def _fewer(draw: Draw, cells: Cells) -> None:
    keep = draw.choice([0, 1, 2, 3])
    for name in cells:
        cells[name] = cells[name][:keep]


CELLS: dict[str, Callable[[Draw, Cells], None]] = {
    "missing values": lambda draw, cells: _some(draw, cells, MISSING),
    "a column of missing values": lambda draw, cells: _whole(draw, cells, MISSING),
    "odd numerals": lambda draw, cells: _some(draw, cells, NUMERALS),
    "a column of odd numerals": lambda draw, cells: _whole(draw, cells, NUMERALS),
    "dates": lambda draw, cells: _some(draw, cells, DATES),
    "a column of dates": lambda draw, cells: _whole(draw, cells, DATES),
    "odd words": lambda draw, cells: _some(draw, cells, WORDS),
    "a column of odd words": lambda draw, cells: _whole(draw, cells, WORDS, ("site", "colour", "price")),
    "mixed types": lambda draw, cells: _some(draw, cells, (True, 3, 2.5, "red", None, "2024-01-01", "")),
    "odd agents": _sites, "odd targets": _targets, "another scale": _scale,
    "a degenerate column": _degenerate, "few rows": _fewer,
}  # fmt: skip


# ---- text
def _quoted(value: Any, separator: str) -> str:
    text = "" if value is None else str(value)
    if any(sign in text for sign in (separator, '"', "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def _as_text(cells: Cells, separator: str) -> str:
    lines = [separator.join(cells)]
    lines += [
        separator.join(_quoted(v, separator) for v in row)
        for row in zip(*cells.values(), strict=True)
    ]
    return "\n".join(lines) + "\n"


def _line(change: Callable[[str], str]) -> Callable[[str, int], str]:
    """Change one line."""

    def apply(text: str, at: int) -> str:
        lines = text.split("\n")
        at %= max(1, len(lines) - 1)
        lines[at] = change(lines[at])
        return "\n".join(lines)

    return apply


def _header(old: str, new: str) -> Callable[[str, int], str]:
    return lambda text, at: text.replace(old, new, 1)


TEXTS: dict[str, Callable[[str, int], str]] = {
    "a doubled header": _header("width", "dose"), "an empty header": _header("width", ""),
    "a header with a line break": _header("width", '"wi\ndth"'), "a blank header": _header("width", " width "),
    "no header": lambda text, at: text.split("\n", 1)[1], "a header in quotes": _header("width", '"width"'),
    "a header of a number": _header("width", "3"), "the header twice": lambda text, at: text.split("\n", 1)[0] + "\n" + text,
    "a short line": _line(lambda line: line.rpartition(",")[0]), "a long line": _line(lambda line: line + ",7"),
    "an unfinished quote": _line(lambda line: '"' + line), "a blank line": _line(lambda line: line + "\n"),
    "a line of blanks": _line(lambda line: line + "\n   "), "a comment": _line(lambda line: "# seen\n" + line),
    "another separator in a line": _line(lambda line: line.replace(",", ";")), "commas at the end": lambda text, at: text.replace("\n", ",\n"),
    "semicolons": lambda text, at: text.replace(",", ";"), "tabs": lambda text, at: text.replace(",", "\t"),
    "blanks after commas": lambda text, at: text.replace(",", ", "), "CRLF": lambda text, at: text.replace("\n", "\r\n"),
    "CR": lambda text, at: text.replace("\n", "\r"), "mixed line ends": _line(lambda line: line + "\r"),
    "cut in the middle": lambda text, at: text[: len(text) * 2 // 3], "no last line end": lambda text, at: text.rstrip("\n"),
    "a NUL": _line(lambda line: line[:3] + "\0" + line[3:]), "a title above": lambda text, at: "Prices of 2024\n\n" + text,
    "a total below": lambda text, at: text + "total,,,,99\n", "everything quoted": lambda text, at: "\n".join(
        ",".join(f'"{w}"' for w in line.split(",")) for line in text.rstrip("\n").split("\n")) + "\n",
    "decimal commas": lambda text, at: text.replace(",", ";").replace(".", ","),
}  # fmt: skip
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252")


# ---- Parquet
def _repeat(values: tuple, kind: pa.DataType) -> Callable[[int], pa.Array]:
    return lambda rows: pa.array([values[i % len(values)] for i in range(rows)], kind)


TODAY, NOON = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12)
ZONE = datetime.timezone(datetime.timedelta(hours=5))
TYPES: dict[str, Callable[[int], pa.Array]] = {
    "a list": _repeat(([1, 2], None, []), pa.list_(pa.int64())), "a list of a size": _repeat(([1, 2],), pa.list_(pa.int8(), 2)),
    "a struct": _repeat(({"a": 1}, {"a": None}), pa.struct([("a", pa.int64())])), "a map": _repeat(([("k", 1)],), pa.map_(pa.string(), pa.int64())),
    "a dictionary of words": lambda rows: _repeat(("u", "v"), pa.string())(rows).dictionary_encode(),
    "a dictionary of numbers": lambda rows: _repeat((1.5, 2.5, None), pa.float64())(rows).dictionary_encode(),
    "decimals": _repeat((decimal.Decimal("1.50"), decimal.Decimal("-2.25"), decimal.Decimal("3.00")), pa.decimal128(10, 2)),
    "large decimals": _repeat((decimal.Decimal(10) ** 40, decimal.Decimal(1)), pa.decimal256(60, 2)),
    "stamps": _repeat((NOON, NOON + datetime.timedelta(hours=3)), pa.timestamp("ns")), "stamps with zone": _repeat((NOON.replace(tzinfo=ZONE), NOON.replace(tzinfo=ZONE) + datetime.timedelta(days=1)), pa.timestamp("us", "+05:00")),
    "days": _repeat((TODAY, TODAY + datetime.timedelta(days=400)), pa.date32()), "times of day": _repeat((datetime.time(1), datetime.time(2, 30)), pa.time32("s")),
    "durations": _repeat((datetime.timedelta(days=1), datetime.timedelta(seconds=-5)), pa.duration("us")), "bytes": _repeat((b"a", b"\xff\x00"), pa.binary()),
    "bytes of a size": _repeat((b"ab", b"cd"), pa.binary(2)), "truth values": _repeat((True, False, None), pa.bool_()), "nothing": _repeat((None,), pa.null()),
    "half floats": lambda rows: pa.array(np.arange(rows, dtype=np.float16) / 4), "large whole numbers": _repeat((2**64 - 1, 0, 2**53 + 1), pa.uint64()),
    "whole numbers with holes": _repeat((1, None, 3), pa.int64()), "NaN and infinity": _repeat((1.0, float("nan"), float("inf"), -float("inf")), pa.float64()),
    "large words": _repeat(("u", "v"), pa.large_string()), "views of words": _repeat(("u", "v"), pa.string_view()), "single precision": _repeat((1e38, -1e38, 1e-45), pa.float32()),
}  # fmt: skip


def _plain_type(values: list[Any]) -> pa.Array:
    """Numbers where all are; words otherwise."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if v is None else str(v) for v in values])


def _binary(draw: Draw, cells: Cells, done: list[str]) -> tuple[str, bytes]:
    rows = len(cells["site"])
    columns = {name: _plain_type(values) for name, values in cells.items()}
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
        return "mine.csv", _as_text(cells, ",").encode()  # nobody can have such a file
    return "mine.parquet", sink.getvalue()


# ---- how it is packed
def _zipped(name: str, content: bytes, *more: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for inside in (name, *more):
            archive.writestr(inside, content)
    return sink.getvalue()


PACKED: dict[str, Callable[[str, bytes], tuple[str, bytes]]] = {
    "gz": lambda name, content: (name + ".gz", gzip.compress(content)), "bz2": lambda name, content: (name + ".bz2", bz2.compress(content)),
    "xz": lambda name, content: (name + ".xz", lzma.compress(content)), "zip": lambda name, content: (name + ".zip", _zipped(name, content)),
    "gz cut short": lambda name, content: (name + ".gz", gzip.compress(content)[:-9]), "gz cut to its head": lambda name, content: (name + ".gz", gzip.compress(content)[:12]),
    "gz that is not": lambda name, content: (name + ".gz", content), "gz without a name for it": lambda name, content: (name, gzip.compress(content)),
    "gz and more": lambda name, content: (name + ".gz", gzip.compress(content) + b"more"), "gz of gz": lambda name, content: (name + ".gz", gzip.compress(gzip.compress(content))),
    "zip of two": lambda name, content: (name + ".zip", _zipped(name, content, "other.csv")), "bz2 cut short": lambda name, content: (name + ".bz2", bz2.compress(content)[:-5]),
    "zip cut short": lambda name, content: (name + ".zip", _zipped(name, content)[:-30]), "another suffix": lambda name, content: ("mine.parquet" if name.endswith("csv") else "mine.csv", content),
    "an unknown suffix": lambda name, content: ("mine.dat", content), "no suffix": lambda name, content: ("mine", content), "suffix xlsx": lambda name, content: ("mine.xlsx", content),
    "suffix svm": lambda name, content: ("mine.svm", content), "suffix txt": lambda name, content: ("mine.txt", content), "empty": lambda name, content: (name, b""),
    "cut by 100 bytes": lambda name, content: (name, content[:-100]), "a byte flipped": lambda name, content: (name, content[:-7] + bytes([content[-7] ^ 255]) + content[-6:] if len(content) > 9 else content),
}  # fmt: skip
OPTIONS: tuple[list[str], ...] = (
    ["--missing", "mean"], ["--missing", "0"], ["--missing", "nan"], ["--missing", "1e400"], ["--missing", "x"],
    ["--missing", "-1e300"], ["--ridge", "0"], ["--ridge", "1e300"], ["--ridge", "-1"], ["--ridge", "nan"], ["--ridge", "1e-320"],
    ["--weights", "rows"], ["--least-rows", "3"], ["--least-rows", "0"], ["--least-rows", "99"], ["--active", "0"],
    ["--active", "2"], ["--active", "4"], ["--active", "99"], ["--batch-size", "0"], ["--batch-size", "1"], ["--batch-size", "1000"],
    ["--local-steps", "0"], ["--local-steps", "3"], ["--categorical", "dose"], ["--categorical", "no"], ["--drop", "dose"],
    ["--drop", "no"], ["--drop", "site"], ["--drop", "price"], ["--drop", "dose", "--drop", "width", "--drop", "colour"],
    ["--na", "red"], ["--na", "0"], ["--na", ""], ["--separator", ";"], ["--separator", "ab"], ["--separator", "tab"],
    ["--decimal", "comma"], ["--decimal", "x"], ["--encoding", "latin-1"], ["--encoding", "no"], ["--encoding", "utf-16"], ["--format", "csv"],
    ["--format", "no"],
)  # fmt: skip
ASKED = (
    ("colour", "price"), ("site", "colour"), ("site", "dose"), ("price", "site"), ("dose", "price"), ("site", "site"), ("no", "price"),
    ("site", "no"), ("site", ""), ("SITE", "price"),
)  # fmt: skip


def cases() -> st.SearchStrategy[Case]:
    """Files and their options; drawn evenly, which Hypothesis alone would not do."""
    return st.randoms(use_true_random=True).map(_case)


def _case(draw: Draw) -> Case:
    """What a number of random draws gives."""
    cells, done = _rows(draw), []
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
        text = _as_text(cells, ",")
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
