"""The battery of nasty tables: what is read of each, or the exact error that the user sees."""

import sys
import types

import numpy as np
import pytest
from nasty_tables import BAD, GOOD, PLAIN

from isfed.cli.table_options import TableOptions, spelled
from isfed.datasets.reading import Reading
from isfed.datasets.sources import open_source


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
    assert "\n" not in found


def test_excel_needs_its_extra(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"needs openpyxl: pip install 'isfed\[excel\]'"):
        open_source(tmp_path / "t.xlsx")


def test_excel_sheets_become_tables(tmp_path, monkeypatch):
    """With a stand-in for openpyxl, which reads cells as Python values."""
    cells = [("site", "x", "mixed"), ("a", 1, 2), ("b", 2.5, "two"), (None, None, None)]
    sheet = types.SimpleNamespace(iter_rows=lambda values_only: iter(cells))
    book = types.SimpleNamespace(active=sheet)
    stand_in = types.SimpleNamespace(load_workbook=lambda path, **_: book)
    monkeypatch.setitem(sys.modules, "openpyxl", stand_in)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    table = open_source(tmp_path / "t.xlsx").table
    assert table.to_pydict() == {"site": ["a", "b"], "x": [1.0, 2.5], "mixed": ["2", "two"]}


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
