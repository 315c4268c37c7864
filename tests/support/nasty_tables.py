"""A battery of tables as people really have them, each with what is expected of it.

The exact errors are in nasty_errors.txt beside this file.
"""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import lzma
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

Content = str | bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Nasty:
    """A table, how it is asked for, and what is expected: an exact error, or what was read.

    values: raw numbers of a feature, agent after agent; says: a line of the account.
    """

    name: str
    file: str
    content: Content
    options: dict[str, Any] = field(default_factory=dict)
    agent: str = "site"
    target: str = "y"
    error: str = ""
    features: tuple[str, ...] = ("x", "(intercept)")
    values: dict[str, list[float]] = field(default_factory=lambda: {"x": [1.0, 2.0, 3.0, 5.0]})
    targets: tuple[float, ...] = (2.0, 3.0, 1.0, 5.0)
    says: str = ""

    def write(self, folder: Path) -> Path:
        """Write the table into a folder."""
        path = folder / self.file
        if callable(self.content):
            self.content(path)
        else:
            text = self.content
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


ROWS = ("a,1,2", "a,2,3", "b,3,1", "b,5,5")
PLAIN = "\n".join(("site,x,y", *ROWS)) + "\n"
CLASSES = {"task": "classification"}


def rows(header: str, *lines: str) -> str:
    """A text of a header and lines."""
    return "\n".join((header, *lines)) + "\n"


def extra(name: str, values: Iterable[Any], *, y: Iterable[Any] = (2, 3, 1, 5)) -> str:
    """The plain table with one more column."""
    pairs = zip(("a,1", "a,2", "b,3", "b,5"), values, y, strict=True)
    return rows(f"site,x,{name},y", *(f"{left},{value},{end}" for left, value, end in pairs))


def arrow(**columns: Any) -> Callable[[Path], object]:
    """The plain table with other columns, as Parquet (or Feather, by the suffix)."""
    table = pa.table({"site": list("aabb"), "x": [1, 2, 3, 5], **columns, "y": [2, 3, 1, 5]})

    def write(path: Path) -> object:
        return (feather.write_feather if path.suffix == ".feather" else pq.write_table)(table, path)

    return write


def zipped(**members: str) -> Callable[[Path], object]:
    """A zip file; names are written with _ for the point."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in members.items():
                archive.writestr(name.replace("_", "."), text)

    return write


def classes(count: int, *, per_class: int = 4) -> str:
    """Agents of one class each, so many classes."""
    lines = [f"s{c:02d},{c + n / 10},c{c:02d}" for c in range(count) for n in range(per_class)]
    return rows("site,x,y", *lines)


def zstd(path: Path) -> None:
    """The plain table packed by Zstandard."""
    path.write_bytes(pa.compress(PLAIN.encode(), codec="zstd", asbytes=True))  # type: ignore[arg-type]


DAY = datetime.date(1970, 1, 1)
DAYS = [DAY + datetime.timedelta(days=n) for n in (0, 1, 2, 9)]
STAMPS = [datetime.datetime(1970, 1, 1, n) for n in (0, 6, 12, 18)]

GOOD = [
    Nasty("plain", "t.csv", PLAIN),
    Nasty("without a last line break", "t.csv", PLAIN.rstrip("\n")),
    Nasty("windows line breaks", "t.csv", PLAIN.replace("\n", "\r\n")),
    Nasty("line breaks of old Macs", "t.csv", PLAIN.replace("\n", "\r")),
    Nasty("empty lines", "t.csv", PLAIN.replace("\n", "\n\n")),
    Nasty("blanks after the commas", "t.csv", PLAIN.replace(",", ", ").replace("a, ", "a,")
          .replace("b, ", "b,")),
    Nasty("semicolons", "t.csv", PLAIN.replace(",", ";")),
    Nasty("tabs in .csv", "t.csv", PLAIN.replace(",", "\t")),
    Nasty("tabs in .tsv", "t.tsv", PLAIN.replace(",", "\t")),
    Nasty("bars in .txt", "t.txt", PLAIN.replace(",", "|")),
    Nasty("blanks in .txt", "t.txt", PLAIN.replace(",", "   ")),
    Nasty("a separator of one's own", "t.csv", PLAIN.replace(",", "#"), {"separator": "#"}),
    Nasty("a comma in a semicolon's header", "t.csv",
          rows("site;x, in EUR;y", "a;1;2", "a;2;3", "b;3;1", "b;5;5"),
          features=("x, in EUR", "(intercept)"), values={"x, in EUR": [1, 2, 3, 5]}),
    Nasty("decimal commas", "t.csv", rows("site;x;y", "a;1,5;2,0", "a;2,25;3", "b;3;1", "b;5;5"),
          {"decimal": "comma"}, values={"x": [1.5, 2.25, 3, 5]}),
    Nasty("thousands with points, decimals with commas", "t.csv",
          rows("site;x;y", "a;1.234,5;2", "a;2;3", "b;3;1", "b;5;5"), {"decimal": "comma"},
          values={"x": [1234.5, 2, 3, 5]}),
    Nasty("thousands in quotes", "t.csv", PLAIN.replace("a,1,", 'a,"1,234",'),
          values={"x": [1234, 2, 3, 5]}),
    Nasty("currency", "t.csv", rows("site;x;y", "a;$1;2", "a;$ 2.00;3", "b;3 EUR;1", "b;€5;5")),
    Nasty("negative in parentheses", "t.csv", PLAIN.replace("a,1,", "a,($1),"),
          values={"x": [-1, 2, 3, 5]}),
    Nasty("per cent", "t.csv", rows("site,x,y", "a,1%,2", "a,2 %,3", "b,3%,1", "b,5%,5")),
    Nasty("exponents", "t.csv", PLAIN.replace("a,1,", "a,1e-3,"), values={"x": [1e-3, 2, 3, 5]}),
    Nasty("UTF-8 with a byte order mark", "t.csv", b"\xef\xbb\xbf" + PLAIN.encode()),
    Nasty("UTF-16 with a byte order mark", "t.csv", PLAIN.encode("utf-16")),
    Nasty("UTF-32 with a byte order mark", "t.csv", PLAIN.encode("utf-32")),
    Nasty("UTF-32 of the other byte order", "t.csv", b"\0\0\xfe\xff" + PLAIN.encode("utf-32-be")),
    Nasty("UTF-16 without one", "t.csv", PLAIN.encode("utf-16-le"), {"encoding": "utf-16-le"}),
    Nasty("Latin-1", "t.csv", extra("ort", ("Köln", "Ulm", "Köln", "Ulm")).encode("latin-1"),
          {"encoding": "latin-1"}, features=("x", "ort=Köln", "ort=Ulm", "(intercept)"),
          values={"ort=Köln": [1, 0, 1, 0]}),
    Nasty("quoted line breaks", "t.csv", extra("n", ('"u\nv"', "w", '"u\nv"', "w")),
          features=("x", "n=u\nv", "n=w", "(intercept)")),
    Nasty("quoted separators", "t.csv", extra("n", ('"u,v"', "w", '"u,v"', "w")),
          features=("x", "n=u,v", "n=w", "(intercept)")),
    Nasty("an index column without a name", "t.csv",
          rows(",site,x,y", "0,a,1,2", "1,a,2,3", "2,b,3,1", "3,b,5,5"),
          says="Left out: '' (no name)"),
    Nasty("an index column that pandas names", "t.csv",
          rows("Unnamed: 0,site,x,y", "7,a,1,2", "3,a,2,3", "2,b,3,1", "3,b,5,5"),
          says="Left out: Unnamed: 0 (no name)"),
    Nasty("agents in a column without a name", "t.csv", PLAIN.replace("site", ""), agent=""),
    Nasty("several columns without a name", "t.csv",
          rows(",site,x,,y,", "0,a,1,,2,", "1,a,2,,3,", "2,b,3,,1,", "3,b,5,,5,"),
          says="Left out: '' (3 without a name)"),
    Nasty("a row number with a name", "t.csv",
          rows("id,site,x,y", "1,a,1,2", "2,a,2,3", "3,b,3,1", "4,b,5,5"),
          says="Left out: id (the number of the row; to keep it, use --measured 'id')"),
    Nasty("a row number that is measured", "t.csv",
          rows("id,site,x,y", "1,a,1,2", "2,a,2,3", "3,b,3,1", "4,b,5,5"), {"measured": ["id"]},
          features=("id", "x", "(intercept)"), values={"id": [1, 2, 3, 4]}),
    Nasty("nothing but a row number", "t.csv", PLAIN.replace("b,5", "b,4"),
          values={"x": [1, 2, 3, 4]}),
    Nasty("years that rise with the rows", "t.csv", extra("year", (1990, 1991, 1992, 1993)),
          features=("x", "year", "(intercept)"), values={"year": [1990, 1991, 1992, 1993]}),
    Nasty("a column without values", "t.csv", extra("k", ("", "", "", "")),
          says="Left out: k (no values)"),
    Nasty("a column of blanks", "t.csv", extra("k", (" ", "   ", "", " ")),
          says="Left out: k (no values)"),
    Nasty("a column of question marks", "t.csv", extra("k", "????"),
          says="Left out: k (no values)"),
    Nasty("blanks around words", "t.csv",
          rows("site,x,k,y", "a ,1,u ,2", " a,2, v,3", "b,3,u,1", "b  ,5,\tv,5"),
          features=("x", "k=u", "k=v", "(intercept)"), values={"k=u": [1, 0, 1, 0]}),
    Nasty("blank cells are missing", "t.csv", extra("z", ("1", " ", "3", "")), {"missing": "0"},
          features=("x", "z", "(intercept)"), values={"z": [1, 0, 3, 0]},
          says="Missing values filled with 0.0: z 2"),
    Nasty("leading zeros", "t.csv", extra("zip", ("01067", "10115", "01067", "")),
          {"missing": "0"}, features=("x", "zip=01067", "zip=10115", "(intercept)"),
          values={"zip=01067": [1, 0, 1, 0]}, says="Categories: zip (2: 01067, 10115)"),
    Nasty("leading zeros of text in Parquet", "t.parquet", arrow(zip=["007", "123", "007", "123"]),
          features=("x", "zip=007", "zip=123", "(intercept)")),
    Nasty("leading zeros that are measured", "t.csv", extra("z", ("01", "02", "03", "10")),
          {"measured": ["z"]}, features=("x", "z", "(intercept)"), values={"z": [1, 2, 3, 10]}),
    Nasty("a zero before the point", "t.csv", extra("z", ("0.5", "00.5", "3", "0")),
          features=("x", "z", "(intercept)"), values={"z": [0.5, 0.5, 3, 0]}),
    Nasty("agents with leading zeros", "t.csv", PLAIN.replace("a,", "07,").replace("b,", "7,")),
    Nasty("no header", "t.csv", "\n".join(ROWS) + "\n", {"header": False}, agent="1", target="3",
          features=("2", "(intercept)"), values={"2": [1, 2, 3, 5]}),
    Nasty("a header of numbers", "t.csv", PLAIN.replace("site,x,y", "1,2,3"), agent="1",
          target="3", features=("2", "(intercept)"), values={"2": [1, 2, 3, 5]},
          says="The first line looks like values, not like names: if so, use --no-header"),
    Nasty("years as names", "t.csv", PLAIN.replace("x", "2024"), features=("2024", "(intercept)"),
          values={"2024": [1, 2, 3, 5]}),
    Nasty("rows without a target left out", "t.csv", PLAIN + "b,9,\nb,9,?\n",
          {"drop_missing_target": True}, says="Left out: 2 rows without a target."),
    Nasty("rows without an agent left out", "t.csv", PLAIN + ",9,9\n , 9,\n",
          {"drop_missing_target": True}, says="Left out: 2 rows without an agent."),
    Nasty("classes that are missing left out", "t.csv",
          rows("site,x,y", "a,1,no", "a,2,yes", "c,9,", "b,3,no", "b,5,yes"),
          CLASSES | {"drop_missing_target": True}, targets=(-1, 1, -1, 1),
          says="Left out: 1 row without a target."),
    Nasty("a column that is mostly missing", "t.csv",
          rows("site,x,k,y", *(f"{'ab'[n % 2]},{n * n},{n if n == 5 else ''},{n}"
                               for n in range(20))),
          {"missing": "0"}, features=("x", "k", "(intercept)"), values={},
          targets=(*range(0, 20, 2), *range(1, 20, 2)),
          says="k: 95% of its values are missing; to leave it out, use --drop 'k'"),
    Nasty("an index column left out", "t.csv",
          rows("id,site,x,y", "0,a,1,2", "1,a,2,3", "2,b,3,1", "3,b,5,5"), {"drop": ["id"]}),
    Nasty("constant numbers", "t.csv", extra("seven", (7, 7, 7, 7)),
          says="Constant and left out: seven (always 7)"),
    Nasty("constant words", "t.csv", extra("unit", ("kg",) * 4),
          says="Constant and left out: unit (always kg)"),
    Nasty("collinear", "t.csv", extra("twice", (2, 4, 6, 10)), 
          features=("x", "twice", "(intercept)"),
          says="Sums of other columns, which add nothing: twice"),
    Nasty("huge and tiny scales", "t.csv", extra("z", ("1e150", "2e150", "3e-150", "0")),
          features=("x", "z", "(intercept)")),
    Nasty("large whole numbers", "t.csv", extra("z", (2**60, 2**60 + 4096, 7, 9)),
          features=("x", "z", "(intercept)")),
    Nasty("truth values", "t.csv", extra("on", ("true", "false", "false", "true")),
          features=("x", "on", "(intercept)"), values={"on": [1, 0, 0, 1]},
          says="True or false, as 1 and 0 (1): on"),
    Nasty("yes and no", "t.csv", extra("on", ("yes", "no", "no", "yes")),
          features=("x", "on=no", "on=yes", "(intercept)")),
    Nasty("integer codes", "t.csv",
          rows("site,x,y", *(f"{'ab'[n // 6]},{n % 3},{n}" for n in range(12))),
          values={"x": [0, 1, 2] * 4}, targets=tuple(range(12)),
          says="Whole numbers taken as measured; if they are codes, use --categorical: x "
          "(3 different)"),
    Nasty("codes as categories", "t.csv", PLAIN, {"categorical": ["x"]},
          features=("x=1", "x=2", "x=3", "x=5", "(intercept)"), values={"x=2": [0, 1, 0, 0]}),
    Nasty("dates", "t.csv", extra("day", DAYS), features=("x", "day", "(intercept)"),
          values={"day": [0, 1, 2, 9]},
          says="Dates and times taken as numbers: day (days since 1970)"),
    Nasty("dates with dots", "t.csv", extra("day", ("1.1.1970", "02.01.1970", "3.1.1970", "?")),
          {"missing": "0"}, features=("x", "day", "(intercept)"), values={"day": [0, 1, 2, 0]},
          says="Dates and times taken as numbers: day (days since 1970)"),
    Nasty("days before months", "t.csv",
          extra("day", ("01/01/1970", "31/01/1970", "01/02/1970", "02/01/1970")),
          features=("x", "day", "(intercept)"), values={"day": [0, 30, 31, 1]}),
    Nasty("months before days", "t.csv",
          extra("day", ("1/1/1970 6:00", "1/31/1970 12:00", "2/1/1970 0:00", "1/2/1970 18:00")),
          features=("x", "day", "(intercept)"), values={"day": [0.25, 30.5, 31, 1.75]}),
    Nasty("dates as categories", "t.csv", extra("day", ("1.1.1970", "2.1.1970") * 2),
          {"categorical": ["day"]},
          features=("x", "day=1.1.1970", "day=2.1.1970", "(intercept)")),
    Nasty("dates as agents", "t.csv", PLAIN.replace("a,", "1.1.1970,").replace("b,", "2.1.1970,")),
    Nasty("text of dates in Parquet", "t.parquet",
          arrow(day=[f"1970-01-0{n}" for n in (1, 2, 3, 9)]), features=("x", "day", "(intercept)"),
          values={"day": [0, 1, 2, 8]}),
    Nasty("time stamps", "t.csv", extra("at", STAMPS), features=("x", "at", "(intercept)"),
          values={"at": [0, 0.25, 0.5, 0.75]}),
    Nasty("empty cells filled", "t.csv", PLAIN.replace("b,3,", "b,,"), {"missing": "mean"},
          values={"x": [1, 2, 8 / 3, 5]}, says="Missing values filled with the mean: x 1"),
    Nasty("question marks filled", "t.csv", PLAIN.replace("b,3,", "b,?,"), {"missing": "0"},
          values={"x": [1, 2, 0, 5]}, says="Missing values filled with 0.0: x 1"),
    Nasty("-999 filled", "t.csv", PLAIN.replace("b,3,", "b,-999,"),
          {"missing": "mean", "na": ["-999"]}, values={"x": [1, 2, 8 / 3, 5]}),
    Nasty("-999 unnoticed", "t.csv", PLAIN.replace("b,3,", "b,-999,"),
          values={"x": [1, 2, -999, 5]},
          says="x: -999 occurs 1 times, far from all other values; if it stands for a missing one, "
          "say --na -999"),
    Nasty("one-row agents kept", "t.csv", PLAIN.replace("b,5", "c,5"), {"least_rows": 1}),
    Nasty("one-row agents left out", "t.csv", PLAIN + "c,9,9\n", {"least_rows": 2},
          says="Left out: 1 agent with fewer than 2 rows (1 row)."),
    Nasty("one agent", "t.csv", PLAIN.replace("b,", "a,")),
    Nasty("numbers as agents", "t.csv", PLAIN.replace("a,", "10,").replace("b,", "9,"),
          values={"x": [3, 5, 1, 2]}, targets=(1, 5, 2, 3)),
    Nasty("one class in an agent", "t.csv", extra("k", "pqpq", y=("no", "no", "yes", "yes")),
          CLASSES, features=("x", "k=p", "k=q", "(intercept)"), targets=(-1, -1, 1, 1),
          says="Target y, 2 classes: no 50%, yes 50%"),
    Nasty("three classes", "t.csv", classes(3), CLASSES, values={}, targets=(0,) * 4 + (1,) * 4
          + (2,) * 4, says="Target y, 3 classes: c00 33.3%, c01 33.3%, c02 33.3%"),
    Nasty("26 classes", "t.csv", classes(26, per_class=2), CLASSES, values={},
          targets=tuple(c for c in range(26) for _ in range(2))),
    Nasty("a rare class", "t.csv", rows("site,x,y", *(f"a,{n},no" for n in range(99)), "a,99,yes"),
          CLASSES, values={}, targets=(-1,) * 99 + (1,),
          says="Target y, 2 classes: no 99%, yes 1%"),
    Nasty("a constant target", "t.csv", rows("site,x,y", "a,1,4", "a,2,4", "b,3,4", "b,5,4"),
          targets=(4, 4, 4, 4), says="Target y: from 4 to 4"),
    Nasty("gz", "t.csv.gz", gzip.compress(PLAIN.encode())),
    Nasty("bz2", "t.csv.bz2", bz2.compress(PLAIN.encode())),
    Nasty("xz", "t.csv.xz", lzma.compress(PLAIN.encode())),
    Nasty("zst", "t.csv.zst", zstd),
    Nasty("zip", "t.zip", zipped(t_csv=PLAIN)),
    Nasty("Feather", "t.feather", arrow()),
    Nasty("Parquet without a suffix", "t", arrow(), {"format": "parquet"}),
    Nasty("Parquet with decimals", "t.parquet",
          arrow(z=[decimal.Decimal(n) / 4 for n in range(4)]), features=("x", "z", "(intercept)"),
          values={"z": [0, 0.25, 0.5, 0.75]}),
    Nasty("Parquet with dictionaries", "t.parquet",
          arrow(z=pa.array(list("uvuv")).dictionary_encode(), n=pa.array([7, 8, 7, 9])
                .dictionary_encode()), features=("x", "z=u", "z=v", "n", "(intercept)"),
          values={"n": [7, 8, 7, 9]}),
    Nasty("Parquet with time stamps", "t.parquet",
          arrow(z=pa.array(STAMPS, pa.timestamp("ns", "UTC"))), features=("x", "z", "(intercept)"),
          values={"z": [0, 0.25, 0.5, 0.75]}),
    Nasty("Parquet with times and durations", "t.parquet",
          arrow(t=pa.array([0, 1, 2, 5], pa.time32("s")),
                d=pa.array([0, 1, 2, 5], pa.duration("ms"))),
          features=("x", "t", "d", "(intercept)"), values={"t": [0, 1, 2, 5],
                                                           "d": [0, 0.001, 0.002, 0.005]}),
    Nasty("SVMlight without a suffix", "t", "2 qid:1 1:1\n3 qid:1 1:2\n1 qid:2 1:3\n5 qid:2 1:5\n",
          {"format": "svmlight"}, agent="qid", target="label", features=("1", "(intercept)"),
          values={"1": [1, 2, 3, 5]}),
]  # fmt: skip

_BAD = [
    Nasty("no file", "t.csv", lambda path: None),
    Nasty("empty", "t.csv", ""),
    Nasty("a header alone", "t.csv", "site,x,y\n"),
    Nasty("a suffix that says nothing", "t.docx", PLAIN),
    Nasty("SVMlight that says nothing", "t", "2 1:1\n3 1:2\n"),
    Nasty("no such agent", "t.csv", PLAIN, agent="sites"),
    Nasty("no such target", "t.csv", PLAIN, target="price"),
    Nasty("no such categorical", "t.csv", PLAIN, {"categorical": ["z"]}),
    Nasty("the same column twice", "t.csv", rows("site,x,x,y", "a,1,1,2", "a,2,2,2")),
    Nasty("a row too short", "t.csv", PLAIN.replace("b,3,1", "b,3")),
    Nasty("Latin-1 unannounced", "t.csv", extra("o", ("Köln", "u", "v", "w")).encode("latin-1")),
    Nasty("Windows unannounced", "t.csv", extra("o", ("10 €", "u", "v", "w")).encode("cp1252")),
    Nasty("Windows, seen after the header", "t.csv",
          extra("größe", ("10 €", "u", "v", "w")).encode("cp1252")),
    Nasty("Latin-1 in the header", "t.csv", PLAIN.replace("x", "größe").encode("latin-1")),
    Nasty("UTF-16 without a mark", "t.csv", PLAIN.encode("utf-16-le")),
    Nasty("the wrong encoding", "t.csv", extra("o", ("Köln", "u", "v", "w")).encode("latin-1"),
          {"encoding": "utf-8"}),
    Nasty("an encoding that is none", "t.csv", PLAIN, {"encoding": "latin-99"}),
    Nasty("an encoding of something else", "t.csv", "a" + PLAIN, {"encoding": "utf-16-le"}),
    Nasty("a separator of something else", "t.csv", PLAIN, {"separator": ";"}),
    Nasty("a categorical target", "t.csv", PLAIN, {"categorical": ["y"]}),
    Nasty("a separator that is none", "t.csv", PLAIN, {"separator": "ab"}),
    Nasty("decimal commas unannounced", "t.csv",
          rows("site;x;y", "a;1,5;2", "a;2,25;3", "b;3;1", "b;5;5")),
    Nasty("a word among numbers", "t.csv", PLAIN.replace("b,3,", "b,many,")),
    Nasty("a number among words", "t.csv", extra("k", ("red", "7", "red", "blue"))),
    Nasty("an empty cell", "t.csv", PLAIN.replace("b,3,", "b,,")),
    Nasty("a question mark", "t.csv", PLAIN.replace("b,3,", "b,?,")),
    Nasty("infinity", "t.csv", PLAIN.replace("b,3,", "b,inf,")),
    Nasty("a number beyond squares", "t.csv", PLAIN.replace("b,3,", "b,1e308,")),
    Nasty("a target beyond squares", "t.csv", PLAIN.replace("b,3,1", "b,3,-1e100")),
    Nasty("a word between line breaks of old Macs", "t.csv",
          PLAIN.replace("b,3,", "b,many,").replace("\n", "\r")),
    Nasty("no target", "t.csv", PLAIN.replace("b,3,1", "b,3,")),
    Nasty("no agent", "t.csv", PLAIN.replace("b,3", ",3")),
    Nasty("an agent of one row", "t.csv", PLAIN + "c,9,9\n"),
    Nasty("no agent is large enough", "t.csv", PLAIN, {"least_rows": 3}),
    Nasty("least rows of none", "t.csv", PLAIN, {"least_rows": 0}),
    Nasty("words to measure", "t.csv", extra("k", "pqpq", y=("no", "no", "yes", "yes"))),
    Nasty("measured classes", "t.csv", PLAIN.replace("a,1,2", "a,1,2.5"), CLASSES),
    Nasty("one class", "t.csv", rows("site,x,y", "a,1,no", "a,2,no"), CLASSES),
    Nasty("two columns with missing values", "t.csv", extra("k", ("", "2", "", "1"))
          .replace("b,5", "b,")),
    Nasty("a column that is almost empty", "t.csv",
          rows("site,x,k,y", *(f"a,{n or ''},{n if n == 5 else ''},{n}" for n in range(10)))),
    Nasty("several problems", "t.csv",
          rows("site,x,who,k,y", *(f"{'ab'[n % 2]},{n},n{n},{'red' if n else 7},{n or ''}"
                                   for n in range(30)), "c,inf,n30,red,1")),
    Nasty("two columns that are not there", "t.csv", PLAIN, {"drop": ["z"]}, agent="sites"),
    Nasty("columns that occur twice", "t.csv", rows("site,x,x,y,y", "a,1,1,2,2", "a,2,2,2,2")),
    Nasty("values in place of a header", "t.csv", "\n".join(ROWS) + "\n"),
    Nasty("values that repeat in place of a header", "t.csv", "a,1,1\na,2,2\nb,3,3\nb,3,1\n"),
    Nasty("no row has a target", "t.csv", rows("site,x,y", "a,1,", "a,2,?"),
          {"drop_missing_target": True}),
    Nasty("a target without values", "t.csv", rows("site,x,y", "a,1,", "a,2,"), CLASSES),
    Nasty("agents without names", "t.csv", rows("site,x,y", " ,1,3", ",2,4")),
    Nasty("lines that are uneven", "t.csv", PLAIN.replace("a,1,2", "a,1").replace("b,3,1", "b,3")),
    Nasty("measured words", "t.csv", extra("k", "pqpq"), {"measured": ["k"]}),
    Nasty("measured and categorical", "t.csv", PLAIN, {"measured": ["x"], "categorical": ["x"]}),
    Nasty("only a column without values", "t.csv", rows("site,k,y", "a,,1", "a,,2")),
    Nasty("categories without values", "t.csv", extra("k", ("", "", "", "")),
          {"categorical": ["k"], "missing": "mean"}),
    Nasty("dates that may be either", "t.csv", rows(
        "site,x,day,y", *(f"a,{n},{n % 12 + 1}/1/2024,{n}" for n in range(22)))),
    Nasty("names as features", "t.csv",
          rows("site,x,who,y", *(f"a,{n},n{n},{n}" for n in range(30)))),
    Nasty("no features", "t.csv", rows("site,y", "a,1", "a,2")),
    Nasty("agent and target alike", "t.csv", PLAIN, agent="y"),
    Nasty("a mended value that is none", "t.csv", PLAIN, {"missing": "median"}),
    Nasty("Parquet with lists", "t.parquet", arrow(z=[[1], [2], [3], [4]])),
    Nasty("Parquet with structs", "t.parquet", arrow(z=[{"u": 1}] * 4)),
    Nasty("lists as agents", "t.parquet", arrow(z=[[1], [2], [3], [4]]), agent="z"),
    Nasty("no Parquet", "t.parquet", PLAIN),
    Nasty("no Feather", "t.feather", PLAIN),
    Nasty("a broken gz", "t.csv.gz", gzip.compress(PLAIN.encode())[:-9]),
    Nasty("a zip of two", "t.zip", zipped(t_csv=PLAIN, u_csv=PLAIN)),
]  # fmt: skip

_ERRORS = dict(
    line.replace("\\n", "\n").split(": ", 1)
    for line in Path(__file__).with_name("nasty_errors.txt").read_text().splitlines()
)
BAD = [replace(case, error=_ERRORS[case.name]) for case in _BAD]
