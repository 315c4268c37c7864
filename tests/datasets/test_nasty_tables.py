"""The battery of nasty tables: what is read of each, or the exact error that the user sees."""

import gzip
import sys
import types
from datetime import datetime

import numpy as np
import pytest
from nasty_tables import BAD, GOOD, PLAIN

from isfed.cli.table_options import TableOptions, spelled
from isfed.datasets.delimited_text import TextFile
from isfed.datasets.read_options import Reading
from isfed.datasets.table_sources import open_source


def read(case, folder):
    path = case.write(folder)
    options = TableOptions(**case.options)
    return options.source(path.relative_to(folder), case.agent, case.target).table()


def test_the_battery_is_large():
    assert len(GOOD) + len(BAD) >= 100
    assert len({case.name for case in (*GOOD, *BAD)}) == len(GOOD) + len(BAD)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_what_is_read(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = read(case, tmp_path)
    assert table.features == case.features
    np.testing.assert_array_equal(table.data.targets, case.targets)
    for name, values in case.values.items():
        at = table.features.index(name)
        raw = table.data.features[:, at] * table.scaling.scale[at] + table.scaling.mean[at]
        np.testing.assert_allclose(raw, values, rtol=1e-9, atol=1e-12)
    assert np.isfinite(table.data.features).all()
    assert not case.says or case.says in table.account.lines()


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_what_is_said(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError)) as caught:
        read(case, tmp_path)
    found = spelled(str(caught.value))
    assert found == case.error
    assert all(line.startswith("- ") for line in found.split("\n")[1:])


def test_excel_needs_its_extra(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"needs openpyxl: pip install 'isfed\[excel\]'"):
        open_source(tmp_path / "t.xlsx")


def test_excel_sheets_become_tables(tmp_path, monkeypatch):
    """With a stand-in for openpyxl, which reads cells as Python values."""
    cells = [("site", "x", "mixed"), ("a", 1, 2), ("b", 2.5, "two"), (None, None, None)]
    sheet = types.SimpleNamespace(iter_rows=lambda values_only: iter(cells))
    book = types.SimpleNamespace(active=sheet, close=lambda: None)
    stand_in = types.SimpleNamespace(load_workbook=lambda path, **_: book)
    monkeypatch.setitem(sys.modules, "openpyxl", stand_in)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    table = open_source(tmp_path / "t.xlsx").table
    assert table.to_pydict() == {"site": ["a", "b"], "x": [1.0, 2.5], "mixed": ["2", "two"]}


def test_an_excel_file_is_read_with_its_own_row_numbers(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (
        [" Site ", "When", "Ill", "Cost", None],
        ["a", datetime(2026, 1, 1), True, 1.5, None],
        [None] * 5,
        ["a", datetime(2026, 1, 2), False, None, None],
        ["b", datetime(2026, 1, 3), True, 3, None],
        ["b", datetime(2026, 1, 4), False, 4, None],
    ):
        book.active.append(row)
    book.create_sheet("notes").append(["nothing"])
    book.save(tmp_path / "t.xlsx")
    source = open_source(tmp_path / "t.xlsx")
    assert source.table.column_names == ["Site", "When", "Ill", "Cost"]
    assert source.table.column("Cost").to_pylist() == [1.5, None, 3.0, 4.0]
    assert [source.spot(row) for row in range(4)] == ["row 2", "row 4", "row 5", "row 6"]
    packed = tmp_path / "t.xlsx.gz"
    packed.write_bytes(gzip.compress((tmp_path / "t.xlsx").read_bytes()))
    assert open_source(packed).table.equals(source.table)
    with pytest.raises(ValueError, match="row 4, column 'Cost': the value is missing"):
        TableOptions().source(tmp_path / "t.xlsx", "Site", "Ill").table()
    book.active.insert_rows(1)
    book.active["A1"] = "Report of 2026"
    book.save(tmp_path / "titled.xlsx")
    with pytest.raises(ValueError, match="row 1 of the sheet does not name all columns"):
        open_source(tmp_path / "titled.xlsx")


def test_a_value_can_stand_for_a_missing_one_in_every_kind_of_column(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n-1,-1.0,none\n2,2.5,u\n")
    table = open_source(tmp_path / "t.csv", Reading(na=("-1", "none"))).table
    assert table.to_pydict() == {"a": [None, 2], "b": [None, 2.5], "c": [None, "u"]}


@pytest.mark.parametrize("quoted", [True, False])
def test_lines_are_counted_in_the_file(tmp_path, quoted):
    text = PLAIN.replace("a,1", '"a",1') if quoted else PLAIN
    (tmp_path / "t.csv").write_text(text.replace("\nb,3", "\n\n\nb,3"))
    source = open_source(tmp_path / "t.csv")
    assert [source.spot(row) for row in range(4)] == ["line 2", "line 3", "line 6", "line 7"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_line_of_a_row_counts_empty_lines_and_lines_within_quotes(end, tmp_path):
    lines = ["a,b", "", "1,x", '2,"y', "", 'z"', "", "3,x", "4,x", '5,""', "6,x", "", "", "7,x"]
    path = tmp_path / "uneven.csv"
    path.write_bytes(end.join(lines).encode())
    file = TextFile(path, Reading(), ",")
    rows = [line for line, _ in file.rows()][1:]
    assert [file.line(row) for row in range(7)] == [3, 4, 8, 9, 10, 11, 14] == rows
    with pytest.raises(IndexError):
        file.line(7)


def test_a_mark_of_inches_is_no_quote(tmp_path):
    path = tmp_path / "inches.csv"
    path.write_text('site,pipe\na,5"\na,6\nb,7\n')
    file = TextFile(path, Reading(), ",")
    assert file.table().column("pipe").to_pylist() == ['5"', "6", "7"]
    assert [file.line(row) for row in range(3)] == [2, 3, 4]


def test_lines_are_those_of_a_csv_reader(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "t.csv"
    for _ in range(500):
        signs = rng.choice(list('a,"\n\r'), size=rng.integers(0, 9), p=[0.3, 0.2, 0.15, 0.2, 0.15])
        path.write_text("h,i\n" + "".join(signs), newline="")
        file = TextFile(path, Reading(separator=","), ",")
        lines = [line for line, _ in file.rows()][1:]
        assert [file.line(row) for row in range(len(lines))] == lines


def test_every_uneven_line_is_named(tmp_path):
    path = tmp_path / "uneven.csv"
    path.write_text("site,x\na,1\na,1,2\n\nb\nb,2\n")
    problems = list(TextFile(path, Reading(), ",").uneven_lines())
    assert [problem.split(":")[0].rpartition(" ")[2] for problem in problems] == ["3", "5"]


def test_a_packed_file_of_nothing_is_empty(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match=r"t\.csv\.gz is empty; expected a header line and rows"):
        open_source(tmp_path / "t.csv.gz")


def test_an_agent_with_most_of_the_rows_is_pointed_out(tmp_path):
    path = tmp_path / "t.csv"
    rows = [f"{site},{i},{i % 3}" for i, site in enumerate("a" * 20 + "bb" + "cc")]
    path.write_text("site,x,y\n" + "\n".join(rows) + "\n")
    lines = TableOptions().source(path, "site", "y").table().account.lines()
    assert "One agent has 83% of the rows and counts as one of 3" in lines[1]
    lines = TableOptions(weights="rows").source(path, "site", "y").table().account.lines()
    assert not any("One agent" in line for line in lines)


def test_a_target_is_not_said_to_be_categorical(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site;x;y\na;1;1,5\na;2;2,5\nb;3;3,5\nb;4;1,5\n")
    with pytest.raises(ValueError, match="use decimal='comma', or, if these are classes, use"):
        TableOptions().source(path, "site", "y").table()


def test_a_blank_inside_dates_is_no_separator(tmp_path):
    path = tmp_path / "visits.txt"
    path.write_text("time|weight kg\n2024-05-07 05:30|2.740\n2024-12-12 00:30|5.690\n")
    assert TextFile(path, Reading(), None).delimiter == "|"
