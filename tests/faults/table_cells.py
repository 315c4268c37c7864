"""What can be done to the cells of a good table and to the text that they make."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

SITES = ("north", "south", "east", "west")
COLUMNS = ("site", "dose", "width", "colour", "price")
MISSING = (
    "nan",
    "NaN",
    "NAN",
    "inf",
    "-inf",
    "Infinity",
    "+INF",
    "#N/A",
    "N/A",
    "NA",
    "n/a",
    "null",
    "NULL",
    "None",
    "",
    " ",
    "-",
    "?",
    ".",
    "1.#QNAN",
    "1.#INF",
    "-nan(ind)",
    "∞",
    "missing",
    "#DIV/0!",
    "NaT",
)
NUMERALS = (
    "10" * 15,
    str(2**63),
    str(-(2**63)),
    str(2**64),
    "9" * 400,
    "1e308",
    "-1e308",
    "1e309",
    "5e-324",
    "1e-400",
    "0x10",
    "1_000",
    "1,5",
    "1.234,5",
    "1 000",
    "1\u00a0000",
    "\u22125",
    "\u0663",
    "\uff11\uff12",
    "--5",
    "+5",
    "5-",
    "1e",
    ".5",
    "5.",
    "$5",
    "5 %",
    "(5)",
    "1/2",
    "1e5e5",
    "1.2.3",
    "TRUE",
    "-0",
    "00012",
)
DATES = (
    "2024-02-29", "2023-02-29", "29/02/2024", "02/29/2024", "2024-01-01T12:00:00Z", "12:30",
    "2024-01-01 12:00:00+05:30", "9999-12-31", "0001-01-01", "1.1.24", "Jan 5, 2024", "2024-W05",
)  # fmt: skip
WORDS = (
    "ß",
    "e\u0301",
    "\u00e9",
    "\u202eabc",
    "\U0001f600",
    "a\tb",
    'a"b',
    "a,b",
    "a;b",
    "line\nbreak",
    "[red]",
    "[/red]",
    "{x}",
    "%s",
    "\\",
    "'",
    "=1+1",
    "nan",
    "x" * 5000,
    "\ufeff",
    "\u200b",
    "\x07",
    "None",
    "*",
)


Cells = dict[str, list[Any]]
Draw = random.Random


def good_rows(draw: Draw) -> Cells:
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
    count = draw.choice([1, 1, 2, 3, len(cells[name])]) if cells[name] else 0
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
        ["only"] * rows,
        [f"s{i}" for i in range(rows)],
        ["alone", *cells["site"][1:]],
        [i % 3 for i in range(rows)],
        [i % 3 + 0.5 for i in range(rows)],
        [""] * rows,
        [("é", "e\u0301")[i % 2] for i in range(rows)],
        [("A", "a", " a", "a ")[i % 4] for i in range(rows)],
        [(1, "1", 1.0, "01")[i % 4] for i in range(rows)],
        [10**30 + i % 2 for i in range(rows)],
        [(True, False)[i % 2] for i in range(rows)],
        [f"2024-01-0{1 + i % 3}" for i in range(rows)],
    ]
    cells["site"] = draw.choice(sites)


def _targets(draw: Draw, cells: Cells) -> None:
    rows = len(cells["price"])
    targets: list[list] = [
        [0.0] * rows,
        [7.25] * rows,
        [float(i % 2) for i in range(rows)],
        [i % 3 for i in range(rows)],
        [f"class {i % 5}" for i in range(rows)],
        [f"id{i}" for i in range(rows)],
        [0.0] * (rows - 1) + [1.0],
        ["yes"] * rows,
        [(True, False)[i % 2] for i in range(rows)],
        list(cells["dose"]),
        [("1", "1.0", "2")[i % 3] for i in range(rows)],
        [1e-310] * rows,
        ["yes" if site == "north" else "no" for site in cells["site"]],
    ]
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
        [1.0] * rows,
        [None] * rows,
        list(cells["dose"]),
        list(cells["price"]),
        [0.0] * (rows - 1) + [1e12],
        [f"w{i}" for i in range(rows)],
        list(range(rows)),
        [cells["site"][i] for i in range(rows)],
        [1e16 + i for i in range(rows)],
    ]
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
    "a column of odd words": lambda draw, cells: _whole(
        draw, cells, WORDS, ("site", "colour", "price")
    ),
    "mixed types": lambda draw, cells: _some(
        draw, cells, (True, 3, 2.5, "red", None, "2024-01-01", "")
    ),
    "odd agents": _sites,
    "odd targets": _targets,
    "another scale": _scale,
    "a degenerate column": _degenerate,
    "few rows": _fewer,
}


# ---- text
def _quoted(value: Any, separator: str) -> str:
    text = "" if value is None else str(value)
    if any(sign in text for sign in (separator, '"', "\n")):
        return '"' + text.replace('"', '""') + '"'
    return text


def as_text(cells: Cells, separator: str) -> str:
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
    "a doubled header": _header("width", "dose"),
    "an empty header": _header("width", ""),
    "a header with a line break": _header("width", '"wi\ndth"'),
    "a blank header": _header("width", " width "),
    "no header": lambda text, at: text.split("\n", 1)[1],
    "a header in quotes": _header("width", '"width"'),
    "a header of a number": _header("width", "3"),
    "the header twice": lambda text, at: text.split("\n", 1)[0] + "\n" + text,
    "a short line": _line(lambda line: line.rpartition(",")[0]),
    "a long line": _line(lambda line: line + ",7"),
    "an unfinished quote": _line(lambda line: '"' + line),
    "a blank line": _line(lambda line: line + "\n"),
    "a line of blanks": _line(lambda line: line + "\n   "),
    "a comment": _line(lambda line: "# seen\n" + line),
    "another separator in a line": _line(lambda line: line.replace(",", ";")),
    "commas at the end": lambda text, at: text.replace("\n", ",\n"),
    "semicolons": lambda text, at: text.replace(",", ";"),
    "tabs": lambda text, at: text.replace(",", "\t"),
    "blanks after commas": lambda text, at: text.replace(",", ", "),
    "CRLF": lambda text, at: text.replace("\n", "\r\n"),
    "CR": lambda text, at: text.replace("\n", "\r"),
    "mixed line ends": _line(lambda line: line + "\r"),
    "cut in the middle": lambda text, at: text[: len(text) * 2 // 3],
    "no last line end": lambda text, at: text.rstrip("\n"),
    "a NUL": _line(lambda line: line[:3] + "\0" + line[3:]),
    "a title above": lambda text, at: "Prices of 2024\n\n" + text,
    "a total below": lambda text, at: text + "total,,,,99\n",
    "everything quoted": lambda text, at: (
        "\n".join(
            ",".join(f'"{w}"' for w in line.split(",")) for line in text.rstrip("\n").split("\n")
        )
        + "\n"
    ),
    "decimal commas": lambda text, at: text.replace(",", ";").replace(".", ","),
}


def plain_type(values: list[Any]) -> pa.Array:
    """Numbers where all are; words otherwise."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if v is None else str(v) for v in values])
