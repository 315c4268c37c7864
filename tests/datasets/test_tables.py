"""Tables of every kind to federated data, and an error with its place for everything bad."""

import gzip
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isfed import LeastSquares, Logistic, Problem, Softmax
from isfed.base.progress import listening
from isfed.datasets.read_options import Reading
from isfed.datasets.table_data import Columns, read_table
from isfed.datasets.table_sources import open_source

ROWS = {
    "site": ["b", "a", "b", "a", "b"],
    "x": [1.0, 2.0, 3.0, 4.0, 6.0],
    "colour": ["red", "blue", "red", "green", "blue"],
    "y": [0.5, 1.5, 2.5, 3.5, 4.5],
}
CSV = "site,x,colour,y\nb,1,red,0.5\na,2,blue,1.5\n\nb,3,red,2.5\na,4,green,3.5\nb,6,blue,4.5\n"
COLUMNS = Columns(agent="site", target="y")


def write_csv(folder, text=CSV, name="t.csv"):
    path = folder / name
    path.write_text(text)
    return path


def sources(folder):
    table = pa.table(ROWS)
    pq.write_table(table, folder / "t.parquet")
    (folder / "t.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    frame = pd.DataFrame(ROWS)
    return {
        "arrow": table,
        "parquet": folder / "t.parquet",
        "csv": str(write_csv(folder)),
        "tsv": write_csv(folder, CSV.replace(",", "\t"), "t.tsv"),
        "csv.gz": folder / "t.csv.gz",
        "pandas": frame,
        "pandas, other row labels": frame.set_axis(list("vwxyz")),
        "pandas, categorical": frame.astype({"colour": "category", "site": "category"}),
        "polars": pl.DataFrame(ROWS),
        "polars, categorical": pl.DataFrame(ROWS).with_columns(pl.col("colour").cast(pl.Enum(
            ["red", "green", "blue"]))),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [
    "arrow", "parquet", "csv", "tsv", "csv.gz", "pandas", "pandas, other row labels",
    "pandas, categorical", "polars", "polars, categorical",
])  # fmt: skip
def test_every_source_gives_the_same_data(tmp_path, kind):
    read = read_table(sources(tmp_path)[kind], COLUMNS)
    assert read.agents.tolist() == ["a", "b"]
    assert read.features == ("x", "colour=blue", "colour=green", "colour=red", "(intercept)")
    np.testing.assert_array_equal(read.data.offsets, [0, 2, 5])
    np.testing.assert_array_equal(read.data.targets, [1.5, 3.5, 0.5, 2.5, 4.5])
    x = np.array([2.0, 4.0, 1.0, 3.0, 6.0])
    np.testing.assert_allclose(read.data.features[:, 0], (x - x.mean()) / x.std(), rtol=1e-14)
    np.testing.assert_array_equal(read.data.features[:, 1], [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(read.data.features[:, 2], [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(read.data.features[:, 3], [0, 0, 1, 1, 0])
    np.testing.assert_array_equal(read.data.features[:, 4], 1)
    assert read.imputed == {}


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical])
def test_a_value_that_stands_for_a_missing_one_is_seen_in_polars_text(kind):
    table = pl.DataFrame({**ROWS, "colour": ["red", "?", None, "blue", "?"]})
    opened = open_source(table.with_columns(pl.col("colour").cast(kind)), Reading(na=("?",)))
    found = opened.table.column("colour").to_pylist()
    assert found == ["red", None, None, "blue", None]


def test_features_are_those_named_in_that_order(tmp_path):
    table = {**ROWS, "z": [5, 4, 3, 2, 1], "on": [True, False, True, False, True]}
    columns = Columns(
        agent="site", target="y", features=["z", "on"], standardise=False, intercept=False
    )
    read = read_table(pa.table(table), columns)
    assert read.features == ("z", "on")
    np.testing.assert_array_equal(read.data.features, [[4, 0], [2, 0], [5, 1], [3, 1], [1, 1]])


def test_a_numeric_column_can_be_categorical():
    table = pa.table({"site": [1, 1, 2, 2], "code": [7, 9, 9, 7], "y": [0.0, 1.0, 2.0, 3.0]})
    read = read_table(table, Columns(agent="site", target="y", categorical=["code"]))
    assert read.features == ("code=7", "code=9", "(intercept)")


def test_a_libsvm_file_has_label_qid_and_numbered_columns(tmp_path):
    path = write_csv(tmp_path, "1.5 qid:4 1:2 3:1\n2 qid:3 2:1\n3 qid:4 1:1\n4 qid:3\n", "t.svm")
    columns = Columns(agent="qid", target="label", standardise=False, intercept=False)
    read = read_table(path, columns)
    assert read.features == ("1", "2", "3")
    assert read.agents.tolist() == [3, 4]
    np.testing.assert_array_equal(read.data.targets, [2.0, 4.0, 1.5, 3.0])
    np.testing.assert_array_equal(read.data.features[2], [2.0, 0.0, 1.0])


def test_classes_two_or_more_and_the_loss_that_fits():
    table = {"site": [1, 1, 1, 2, 2], "x": [1.0, 2, 3, 4, 5], "y": ["no", "yes", "no", "yes", "no"]}
    columns = Columns(agent="site", target="y", task="classification")
    read = read_table(pa.table(table), columns)
    assert read.classes == ("no", "yes")
    np.testing.assert_array_equal(read.data.targets, [-1, 1, -1, 1, -1])
    assert read.loss(ridge=0.1) == Logistic(ridge=0.1)
    read = read_table(pa.table({**table, "y": [30, 10, 20, 10, 30]}), columns)
    assert read.classes == (10, 20, 30)
    np.testing.assert_array_equal(read.data.targets, [2, 0, 1, 0, 2])
    assert read.loss(ridge=0.1) == Softmax(ridge=0.1, num_classes=3)
    assert Problem(data=read.data, loss=read.loss(ridge=0.1)).num_params == 6
    assert read_table(pa.table(ROWS), COLUMNS).loss(ridge=0.2) == LeastSquares(ridge=0.2)


GAPS = CSV.replace("b,3,red,2.5", "b,,NA,2.5")


def test_missing_values_are_an_error_by_default(tmp_path):
    path = write_csv(tmp_path, GAPS)
    with pytest.raises(
        ValueError, match=r"t\.csv: values are missing in x \(1, the first in line 5"
    ):
        read_table(path, COLUMNS)
    with pytest.raises(ValueError, match=r"t\.csv, line 5, column 'x': the value is missing \(1"):
        read_table(path, replace(COLUMNS, drop=["colour"]))


def test_missing_values_become_the_mean_of_all_agents(tmp_path):
    columns = Columns(agent="site", target="y", missing="mean", standardise=False)
    read = read_table(write_csv(tmp_path, GAPS), columns)
    np.testing.assert_array_equal(read.data.features[3], [3.25, 0.5, 0.25, 0.25, 1.0])
    assert read.imputed == {"x": 1, "colour=blue": 1, "colour=green": 1, "colour=red": 1}


def test_missing_values_become_a_stated_number():
    table = pa.table({"site": [1, 1], "x": [float("nan"), 2.0], "y": [1, 2]})
    columns = Columns(agent="site", target="y", missing=-1.0, standardise=False)
    read = read_table(table, columns)
    np.testing.assert_array_equal(read.data.features, [[-1.0, 1.0], [2.0, 1.0]])
    assert read.imputed == {"x": 1}


def test_more_is_encoded_as_the_first_table_was():
    read = read_table(pa.table(ROWS), COLUMNS)
    other = pa.table({"y": [9.0], "new": [1], "colour": ["blue"], "x": [7.0], "site": ["c"]})
    more = read.more(other)
    assert more.features == read.features
    x = np.array(ROWS["x"])
    expected = [[(7 - x.mean()) / x.std(), 1, 0, 0, 1]]
    np.testing.assert_allclose(more.data.features, expected, rtol=1e-14)


def test_more_knows_only_the_categories_and_classes_of_training(tmp_path):
    read = read_table(pa.table(ROWS), COLUMNS)
    bad = write_csv(tmp_path, CSV.replace("green", "pink"))
    with pytest.raises(ValueError, match=r"line 6, column 'colour': 'pink' never occurs in train"):
        read.more(bad)
    table = {"site": [1, 1], "x": [1.0, 2.0], "y": ["no", "yes"]}
    read = read_table(pa.table(table), Columns(agent="site", target="y", task="classification"))
    with pytest.raises(ValueError, match=r"row 2, column 'y': 'maybe' never occurs in training"):
        read.more(pa.table({**table, "y": ["no", "maybe"]}))
    assert read.more(pa.table({**table, "y": ["no", "no"]})).data.targets.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("b,3,red,2.5", "b,abc,red,2.5", "line 5, column 'x': 'abc' is not a number, but 4 of"),
        ("b,3,red,2.5", "b,3,17,2.5", "line 2, column 'colour': 'red' is not a number, but 1 of"),
        ("b,3,red,2.5", "b,inf,red,2.5", "line 5, column 'x': the value is inf"),
        ("b,3,red,2.5", "b,-Infinity,red,2.5", "column 'x': the value is -inf"),
        ("b,3,red,2.5", "b,nan,red,2.5", "line 5, column 'x': the value is missing"),
        ("b,3,red,2.5", "b,3,red", "line 5: 3 fields, but the first line has 4"),
        ("b,3,red,2.5", "b,3,red,", "line 5, column 'y': the target is missing"),
        ("b,3,red,2.5", "b,3,red,inf", "line 5, column 'y': the value is inf"),
        ("b,3,red,2.5", "b,3,red,high", "line 5, column 'y': 'high' is not a number"),
        ("b,3,red,2.5", ",3,red,2.5", "line 5, column 'site': the agent is missing"),
        ("b,3,red,2.5", "c,3,red,2.5", "line 5, column 'site': agent c has 1 row"),
        ("site,x,", "site,xx,", "has no column 'x'; did you mean 'xx'?"),
        ("site,x,", "site,colour,", "more than one column 'colour'"),
        (CSV, "", "is empty; expected a header line"),
        (CSV, "site,x,colour,y\n", "has no rows"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(tmp_path, old, new, reason):
    path = write_csv(tmp_path, CSV.replace(old, new))
    columns = Columns(agent="site", target="y", features=["x", "colour"])
    with pytest.raises(ValueError, match=r"t\.csv") as caught:
        read_table(path, columns)
    assert reason in str(caught.value)


def test_a_type_that_changes_late_in_a_long_file_is_found(tmp_path):
    lines = [f"{i % 3},{i},{i}" for i in range(200_000)]
    lines[190_000] = "1,oops,3"
    path = write_csv(tmp_path, "site,x,y\n" + "\n".join(lines))
    with pytest.raises(ValueError, match="line 190002, column 'x': 'oops' is not a number"):
        read_table(path, COLUMNS)


def test_a_quoted_line_break_does_not_shift_the_lines(tmp_path):
    path = write_csv(tmp_path, 'site,n,x,y\na,"two\nlines",1,1\na,q,2,2\nb,r,,3\nb,q,2,3\n')
    with pytest.raises(ValueError, match="line 5, column 'x'"):
        read_table(path, Columns(agent="site", target="y", features=["x"]))


def test_a_text_target_is_an_error_that_says_what_to_do():
    table = pa.table({**ROWS, "y": ["no", "yes", "no", "yes", "no"]})
    with pytest.raises(ValueError, match=r"row 1, column 'y': the target 'no' is text.*task='cl"):
        read_table(table, COLUMNS)


def test_a_broken_number_is_no_class():
    columns = Columns(agent="site", target="y", task="classification")
    with pytest.raises(ValueError, match=r"row 1, column 'y': the target 0\.5 is not a class"):
        read_table(pa.table(ROWS), columns)
    with pytest.raises(ValueError, match="column 'y' has 1 different values"):
        read_table(pa.table({**ROWS, "y": [1] * 5}), columns)


def test_a_million_agents_of_one_row_is_one_short_error():
    column = np.arange(1_000_000)
    table = pa.table({"site": column, "x": column, "y": column})
    with pytest.raises(ValueError, match="1000000 of 1000000 agents have so few") as caught:
        read_table(table, COLUMNS)
    assert len(str(caught.value)) < 400
    columns = Columns(agent="site", target="y", least_rows=1)
    assert read_table(table, columns).data.num_agents == 1_000_000


def test_columns_that_cannot_be_features_are_named():
    table = pa.table({**ROWS, "when": [[1, 2]] * 5})
    with pytest.raises(ValueError, match=r"column 'when' is of type list.*--drop 'when'"):
        read_table(table, COLUMNS)
    empty = pa.table({**ROWS, "none": [None] * 5})
    assert "Left out: none (no values)" in read_table(empty, COLUMNS).account.lines()
    with pytest.raises(ValueError, match="column 'none' has no values"):
        read_table(empty, replace(COLUMNS, features=["x", "none"]))
    many = pa.table({"site": [0] * 2000, "y": range(2000), "id": [f"n{i}" for i in range(2000)]})
    with pytest.raises(ValueError, match="column 'id' has 2000 different values"):
        read_table(many, COLUMNS)


def test_a_source_of_another_kind_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.csv"):
        read_table(tmp_path / "none.csv", COLUMNS)
    with pytest.raises(ValueError, match=r"t\.docx ends in '\.docx'; expected one of \.parquet"):
        read_table(write_csv(tmp_path, CSV, "t.docx"), COLUMNS)
    with pytest.raises(ValueError, match=r"t\.parquet is not a Parquet file"):
        read_table(write_csv(tmp_path, CSV, "t.parquet"), COLUMNS)
    with pytest.raises(TypeError, match="cannot read a table from list"):
        read_table([1, 2], COLUMNS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": "site"}, "both the agent and the target"),
        ({"features": ["x", "y"]}, "'y' cannot be a feature too"),
        ({"features": "x"}, "must be a list of columns"),
        ({"task": "guess"}, "task='guess'"),
        ({"missing": "median"}, "missing='median'"),
        ({"missing": float("nan")}, "missing=nan"),
        ({"least_rows": 0}, "least_rows=0"),
        ({"drop": "x"}, "must be a list of columns"),
        ({"drop": ["site"]}, "drop='site' is the column of the agent"),
        ({"measured": ["y"]}, "only features are categorical or measured"),
        ({"measured": ["x"], "categorical": ["x"]}, "'x' is in categorical and in measured"),
        ({"features": ["x"], "drop": ["x"]}, "'x' is in features and in drop"),
    ],
)
def test_columns_are_checked(change, reason):
    with pytest.raises(ValueError, match=reason):
        Columns(**{"agent": "site", "target": "y", **change})


def test_agents_with_few_rows_are_left_out_and_counted():
    table = pa.table({"site": list("aaabbcdd"), "x": range(8), "y": range(8)})
    read = read_table(table, Columns(agent="site", target="y", least_rows=3, standardise=False))
    assert read.agents.tolist() == ["a"]
    np.testing.assert_array_equal(read.data.features[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(read.rows, [0, 1, 2])
    assert "Left out: 3 agents with fewer than 3 rows (5 rows)." in read.account.lines()
    with pytest.raises(ValueError, match="fewer rows than least_rows=4"):
        read_table(table, Columns(agent="site", target="y", least_rows=4))


def test_constant_columns_are_left_out_and_reported():
    table = pa.table({**ROWS, "seven": [7] * 5, "one": ["only"] * 5})
    read = read_table(table, COLUMNS)
    plain = read_table(pa.table(ROWS), COLUMNS)
    assert read.features == plain.features
    np.testing.assert_array_equal(read.data.features, plain.data.features)
    said = "Constant and left out: seven (always 7), one (always only)"
    assert said in read.account.lines()
    more = read.more(pa.table({**ROWS, "seven": [8] * 5, "one": ["other"] * 5}))
    np.testing.assert_array_equal(more.data.features, plain.data.features)
    kept = read_table(table, Columns(agent="site", target="y", intercept=False))
    assert "seven" in kept.features  # without an intercept a constant is one


def test_the_account_says_what_every_column_was_taken_for():
    rows = 60
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, rows))
    table = pa.table({
        "site": [f"s{n % 3}" for n in range(rows)], "x": x, "z": z, "sum": x - 2 * z,
        "id": range(rows), "code": [n % 4 for n in range(rows)],
        "on": [n % 2 > 0 for n in range(rows)],
        "late": pa.array(range(rows), pa.date32()), "far": [-999.0, *x[1:]],
        "gap": [None, *z[1:]], "kind": ["u", "v", "w"] * 20, "y": ["no"] * 15 + ["yes"] * 45,
    })  # fmt: skip
    columns = Columns(agent="site", target="y", task="classification", missing="mean")
    lines = read_table(table, columns).account.lines()
    assert lines[0].startswith("60 rows of 3 agents (smallest 20, median 20, largest 20 rows); ")
    for line in (
        "Measured (5): x, z, sum, far, gap",
        "True or false, as 1 and 0 (1): on",
        "Categories: kind (3: u, v, w)",
        "Whole numbers taken as measured; if they are codes, use --categorical: code (4 different)",
        "Dates and times taken as numbers: late (days since 1970)",
        "Missing values filled with the mean: gap 1",
        "Left out: id (the number of the row; to keep it, use --measured 'id')",
        "far: -999 occurs 1 times, far from all other values; if it stands for a missing one, say "
        "--na -999",
        "Target y, 2 classes: no 25%, yes 75%",
    ):
        assert line in lines
    sums = next(line for line in lines if line.startswith("Sums of other columns"))
    assert any(name in sums for name in ("x", "z", "sum"))


def test_reading_says_so_for_every_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,x,z,y\na,1,3,2\na,2,5,3\n")
    said = []
    with listening(said.append):
        read_table(path, Columns(agent="site", target="y"))
    assert set(said) == {f"reading {path}"}
    assert len(said) == 5  # once, and twice for each of two features


def test_columns_can_be_left_out_and_another_table_need_not_have_them():
    table = pa.table({**ROWS, "id": [7, 7, 7, 8, 9]})
    read = read_table(table, replace(COLUMNS, drop=["id", "colour"]))
    assert read.features == ("x", "(intercept)")
    assert read.more(table.drop_columns(["id", "colour"])).features == read.features
    with pytest.raises(ValueError, match="no column 'none' and no column 'nor'"):
        read_table(table, replace(COLUMNS, drop=["none", "nor"]))


def test_a_column_is_left_out_only_where_nobody_names_it():
    table = pa.table({**ROWS, "id": range(5)})
    assert read_table(table, COLUMNS).recipe.columns.features == ("x", "colour")
    for columns in (replace(COLUMNS, features=["x", "id"]), replace(COLUMNS, measured=["id"])):
        assert "id" in read_table(table, columns).features
    assert "id=3" in read_table(table, replace(COLUMNS, categorical=["id"])).features
    gap = pa.table({**ROWS, "id": [0, 1, 2, 3, 5]})  # no number of the row
    assert "id" in read_table(gap, COLUMNS).features


def test_rows_without_target_or_agent_are_left_out_on_request():
    table = pa.table({
        "site": ["a", "a", None, "b", "b", "b", "c"], "x": [1.0, 2, 3, 4, 5, 6, 7],
        "y": [1.0, 2, 3, float("nan"), 5, 6, None],
    })  # fmt: skip
    read = read_table(table, replace(COLUMNS, drop_missing_target=True, standardise=False))
    assert read.agents.tolist() == ["a", "b"]  # nothing is left of c
    assert read.rows.tolist() == [0, 1, 4, 5]
    assert read.data.targets.tolist() == [1, 2, 5, 6]
    lines = read.account.lines()
    assert {"Left out: 1 row without an agent.", "Left out: 2 rows without a target."} <= {*lines}
    with pytest.raises(
        ValueError, match=r"2 problems:\n- .*agent is missing.*\n- .*target is missin"
    ):
        read_table(table, COLUMNS)


def test_codes_are_known_again_where_none_has_a_leading_zero(tmp_path):
    text = "site,x,k,y\na,1,007,2\na,2,112,3\nb,3,112,1\nb,5,007,5\n"
    read = read_table(write_csv(tmp_path, text), COLUMNS)
    assert read.features == ("x", "k=007", "k=112", "(intercept)")
    other = write_csv(tmp_path, "site,x,k,y\na,1,112,2\n", "u.csv")
    assert read.more(other).data.features[0, 1:3].tolist() == [0.0, 1.0]
    other = write_csv(tmp_path, "site,x,k,y\na,1,7,2\n", "u.csv")
    with pytest.raises(ValueError, match="'7' never occurs in training"):
        read.more(other)


def test_rows_are_given_as_they_are_written(tmp_path):
    text = 'site;x;k\na ;1,50;007\n\n"b;c";NA;"u\nv"\n'
    source = open_source(write_csv(tmp_path, text), Reading(decimal="comma"))
    assert list(source.rows()) == [
        ["site", "x", "k"], ["a ", "1,50", "007"], ["b;c", "NA", "u\nv"]
    ]  # fmt: skip
    bare = open_source(write_csv(tmp_path, "a,1\nb,2\n"), Reading(header=False))
    assert list(bare.rows()) == [["1", "2"], ["a", "1"], ["b", "2"]]
    assert bare.spot(1) == "line 2"
    table = pa.table({"x": [1, None], "k": ["u", "v"]})
    assert [[*row] for row in open_source(table).rows()] == [["x", "k"], [1, "u"], [None, "v"]]
