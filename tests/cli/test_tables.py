"""`isfed compare` and `isfed diagnose` on tables, good and bad."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isfed.cli.app import app


@pytest.fixture
def tumours(tmp_path) -> Path:
    """The breast-cancer table with an artificial column of sites, as a CSV file."""
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer(as_frame=True)
    frame = bunch.frame
    frame["site"] = [f"site {row % 12}" for row in range(len(frame))]
    path = tmp_path / "tumours.csv"
    frame.to_csv(path, index=False)
    return path


def test_compare_on_a_table(run, tumours, tmp_path):
    code, text = run(
        "compare", str(tumours), "--agent", "site", "--target", "target", "--task",
        "classification", "--rounds", "60", "--repetitions", "3",
    )  # fmt: skip
    assert code == 0, text
    assert "On rows they have not seen" in text
    assert "What to do next" in text
    assert "or add --save model.json" in text
    assert "569 rows of 12 agents" in text
    folder = tmp_path / "runs" / "compare-tumours"
    for name in ("summary.json", "history.parquet", "report.html"):
        assert (folder / name).stat().st_size > 0
    code, text = run("report", str(folder), "--figures")
    assert code == 0, text
    for name in ("comparison.png", "comparison.svg"):
        assert name in text.replace("\n", "")
        assert (folder / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agent", "sit", "--target", "target"], ["no column 'sit'", "did you mean 'site'?"]),
        (["--agent", "site", "--target", "target", "--drop", "are"], ["no column 'are'"]),
        (["--agent", "site", "--target", "target", "--drop", "site"], ["--drop site", "agent"]),
        (["--agent", "site", "--target", "target", "--drop", "target"], ["--drop target is"]),
        (["--agent", "site", "--target", "target", "--missing", "x"], ["--missing x"]),
        (["--agent", "site", "--target", "target", "--task", "guess"], ["guess"]),
        (["--agent", "site", "--target", "target", "--active", "99"], ["--active 99"]),
        (["--agent", "site", "--target", "target", "--rounds", "0"], ["--rounds 0"]),
    ],
)
def test_compare_names_what_is_wrong_and_writes_nothing(run, tumours, tmp_path, options, words):
    code, text = run("compare", str(tumours), *options)
    assert code == 2
    assert "Traceback" not in text
    for word in words:
        assert word in text
    assert not (tmp_path / "runs").exists()


ROWS = ["site,x,y", "a,1,2", "a,2,3", "b,3,1", "b,4,5"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["site,x,y", "a,1,low", "a,2,high", "b,3,low", "b,4,high"], ["line 2", "'y'", "text"]),
        ([*ROWS, "c,5,6"], ["line 6", "'site'", "agent c has 1 row(s)"]),
        ([*ROWS[:3], "b,many,1", "b,4,5"], ["line 4", "'x'", "'many' is not a number"]),
        ([*ROWS[:3], "b,,1", "b,4,5"], ["line 4", "'x'", "missing"]),
        ([*ROWS[:3], "b,nan,1", "b,4,5"], ["line 4", "'x'", "missing"]),
        ([*ROWS[:3], "b,inf,1", "b,4,5"], ["line 4", "'x'", "inf"]),
        ([*ROWS[:3], "b,3,-inf", "b,4,5"], ["line 4", "'y'", "inf"]),
        ([*ROWS[:3], "b,3,", "b,4,5"], ["line 4", "'y'", "target is missing"]),
        ([*ROWS[:3], ",3,1", "b,4,5"], ["line 4", "'site'", "the agent is missing"]),
        ([*ROWS[:3], "b,3", "b,4,5"], ["line 4", "2 fields"]),
        (ROWS[:1], ["no rows"]),
        ([], ["empty"]),
    ],
)
def test_compare_says_where_a_table_is_wrong(run, tmp_path, rows, words):
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n" if rows else "")
    code, text = run("compare", "mine.csv", "--agent", "site", "--target", "y")
    assert code == 2, text
    for word in ("mine.csv", *words):
        assert word in text
    assert not (tmp_path / "runs").exists()


def test_one_class_is_nothing_to_learn(run, tmp_path):
    (tmp_path / "mine.csv").write_text("site,x,y\na,1,no\na,2,no\nb,3,no\nb,4,no\n")
    options = ["--agent", "site", "--target", "y", "--task", "classification"]
    code, text = run("compare", "mine.csv", *options)
    assert code == 2
    assert "'y' has 1 different values" in text
    assert not (tmp_path / "runs").exists()


def test_a_million_agents_of_one_row(run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(1_000_000)
    pq.write_table(pa.table({"site": rows, "x": rows, "y": rows}), tmp_path / "mine.parquet")
    code, text = run("compare", "mine.parquet", "--agent", "site", "--target", "y")
    assert code == 2
    assert "1000000 of 1000000 agents have so few" in text
    assert "Is 'site' the column of the agents?" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0:3", ["line 3", "index 0"]),
        ("1 x:3", ["line 3", "index 'x'"]),
        ("1 2:3 2:4", ["line 3", "index 2 occurs twice"]),
        ("1 3:3 2:4", ["line 3", "comes after 3"]),
        ("1 1:nan", ["line 3", "'nan'"]),
        ("1 1:inf", ["line 3", "'inf'"]),
        ("yes 1:2", ["line 3", "label 'yes'"]),
        ("1 1", ["line 3", "not of the form"]),
    ],
)
def test_compare_says_where_a_libsvm_file_is_wrong(run, tmp_path, line, words):
    lines = ["1 1:1 2:0.5", "-1 1:2 2:1", line, "-1 1:2"]
    (tmp_path / "mine.libsvm").write_text("\n".join(lines) + "\n")
    code, text = run("compare", "mine.libsvm", "--agent", "1", "--target", "label")
    assert code == 2, text
    for word in ("mine.libsvm", *words):
        assert word in text
    assert not (tmp_path / "runs").exists()


SHORT = ["--rounds", "30", "--repetitions", "2"]


def test_an_earlier_comparison_stays_unless_asked(run, tmp_path):
    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{i % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["compare", "mine.csv", "--agent", "site", "--target", "y", *SHORT]
    assert run(*words)[0] == 0
    summary = tmp_path / "runs" / "compare-mine" / "summary.json"
    before = summary.read_bytes()
    code, text = run(*words, "--seed", "1")
    assert code == 1
    assert "--overwrite" in text
    assert summary.read_bytes() == before
    assert run(*words, "--seed", "1", "--overwrite")[0] == 0
    assert summary.read_bytes() != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("ten years of work")
    code, text = run(*words, "--out", "other", "--overwrite")
    assert code == 1
    assert "thesis.tex" in text


def test_compare_that_diverges_or_is_stopped(run, tmp_path, monkeypatch):
    from isfed.studies import comparison_run

    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{i % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["compare", "mine.csv", "--agent", "site", "--target", "y", *SHORT]
    with monkeypatch.context() as patch:
        patch.setattr(comparison_run.ComparisonStudy, "predicted", None)
        patch.setattr(comparison_run, "NO_PREDICTION", 1e200)
        code, text = run(*words, "--out", "far")
    assert code == 1
    assert "diverged at every step size" in text

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(comparison_run.ComparisonStudy, "_curve", stop)
        code, text = run(*words)
    assert code == 130
    assert "--resume" in text
    assert run(*words, "--resume")[0] == 0
    assert run(*words, "--out", "whole")[0] == 0
    files = [tmp_path / folder / "measures.parquet" for folder in ("runs/compare-mine", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_diagnose_answers_for_a_named_problem(run, tmp_path):
    code, text = run("diagnose", "breast-cancer")
    assert code == 0, text
    assert "importance sampling of: predicted at w^o" in text
    assert "Use " in text
    assert "Predicted after 2,000 rounds" in text
    content = json.loads((tmp_path / "runs/diagnose-breast-cancer/summary.json").read_text())
    assert content["setting"]["num_agents"] == 20
    code, text = run("diagnose", "breast-cancer")
    assert code == 1
    assert "--overwrite" in text
    code, text = run("diagnose", "breast-cancer", "--overwrite", "--active", "5")
    assert code == 0, text


def test_diagnose_recommends_no_importance_where_all_are_alike(run, tmp_path):
    rows = ["site,x,y"] + [f"{site},1,{y}" for site in "abcdef" for y in (1, -1)]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    code, text = run(
        "diagnose", "table.csv", "--agent", "site", "--target", "y", "--batch-size", "1"
    )
    assert code == 0, text
    assert "Use FedAvg" in " ".join(text.split())  # in passes, or averaged: those are free


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.csv"], "neither a file nor the name of a data set"),
        (["table.csv"], "give --agent COLUMN and --target COLUMN"),
        (["table.csv", "--agent", "site", "--target", "z"], "z"),
        (["equal", "--ridge", "5"], "equal is not a table, so it takes no --ridge"),
        (["equal", "--active", "301"], "--active 301 exceeds the number of agents, 300"),
        (["equal", "--active", "0"], "--active 0 must be a whole number >= 1"),
        (["equal", "--batch-size", "0"], "--batch-size 0"),
        (["equal", "--local-steps", "0"], "--local-steps 0"),
    ],
)
def test_diagnose_names_what_is_wrong(run, tmp_path, words, message):
    (tmp_path / "table.csv").write_text("site,x,y\na,1,1\nb,2,2\n")
    code, text = run("diagnose", *words)
    assert code == 2
    assert message in " ".join(text.split())
    assert not (tmp_path / "runs").exists()


def test_json_is_all_that_is_printed(run, tmp_path):
    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{i % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["mine.csv", "--agent", "site", "--target", "y", "--json"]
    code, text = run("diagnose", *words)
    assert code == 0, text
    found = json.loads(text[text.index("{") :])  # a slow machine is told of on the other stream
    assert found["best"] in ("uniform", "agents", "examples", "both")
    assert found["data"][0].startswith("40 rows of 4 agents")
    assert found["top_examples"][0]["row_name"].startswith("line ")


def test_columns_are_checked_before_the_folder(run, tmp_path):
    (tmp_path / "mine.csv").write_text("site,x,y\na,1,1\na,2,2\nb,4,2\nb,3,2\n")
    words = ["diagnose", "mine.csv", "--agent", "site", "--target", "y"]
    assert run(*words)[0] == 0
    code, text = run(*words[:-1], "z")
    assert code == 2
    assert "no column 'z'" in text


def test_constants_are_for_those_who_ask(run, tmp_path):
    (tmp_path / "mine.csv").write_text("site,x,y\na,1,1\na,2,2\nb,4,2\nb,3,2\n")
    words = ["diagnose", "mine.csv", "--agent", "site", "--target", "y"]
    code, text = run(*words)
    assert code == 0
    assert "lemmas" not in text
    code, text = run(*words, "--overwrite", "--theory")
    assert code == 0
    assert "lemmas" in text


def test_a_saved_model_predicts(run, tmp_path):
    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{2 * (i % 7)}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["compare", "mine.csv", "--agent", "site", "--target", "y", "--save", "m.json", *SHORT]
    code, text = run(*words)
    assert code == 0, text
    assert "isfed predict m.json NEW.csv" in text
    (tmp_path / "new.csv").write_text("x\n0\n6\n")
    code, text = run("predict", "m.json", "new.csv", "--out", "found.csv")
    assert code == 0, text
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert lines[0] == "y"
    assert float(lines[1]) < 6.0 < float(lines[2])
    code, text = run("predict", "m.json", "nothing.csv")
    assert code == 1
    assert "no file" in text
    predicted = [line.split(",") for line in lines]
    (tmp_path / "new.csv").write_text("who;x\n007;0\n n ;6\n")
    code, text = run("predict", "m.json", "new.csv", "--append", "--out", "both.csv")
    assert code == 0, text
    lines = (tmp_path / "both.csv").read_text().splitlines()
    assert lines == ["who,x,predicted y", f"007,0,{predicted[1][0]}", f" n ,6,{predicted[2][0]}"]
    code, text = run("predict", "m.json", "both.csv", "--append")
    assert code == 2
    assert "has a column 'predicted y' already" in text
    assert run("predict", "m.json", "mine.csv", "--append", "--out", "whole.csv")[0] == 0
    assert (tmp_path / "whole.csv").read_text().startswith("site,x,y,predicted y\ns0,0,0,")


def test_rows_can_weigh_instead_of_agents(run, tmp_path):
    rows = ["site,x,y", *(f"s{min(i % 9, 3)},{i % 7},{(i * i) % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["mine.csv", "--agent", "site", "--target", "y", "--weights", "rows"]
    code, text = run("diagnose", *words)
    assert code == 0, text
    assert "every row counts the same" in " ".join(text.split())
    code, text = run("compare", *words, *SHORT)
    assert code == 0, text
    diagnosed, compared = (
        json.loads((tmp_path / "runs" / f"{command}-mine" / "summary.json").read_text())
        for command in ("diagnose", "compare")
    )
    rows = {row["name"]: row for row in diagnosed["tuned"]}
    for name, found in compared["predicted"].items():
        assert found["excess"] > 0.0
        assert rows[name]["step_size"] > 0.0
    code, text = run("diagnose", *words, "--theory", "--overwrite")
    assert code == 2
    assert "leave out --theory or --weights rows" in " ".join(text.split())
    experiment = """
        rounds = 10
        [problem]
        file = "mine.csv"
        agent = "site"
        target = "y"
        weights = "rows"
        [[algorithm]]
        kind = "FedProx"
        step_size = 0.01
        num_active = 2
    """
    (tmp_path / "mine.toml").write_text(experiment)
    code, text = run("run", "mine.toml", "--out", "there")
    assert code == 2
    assert "leave it out, or set weights = 'agents' in [problem]" in " ".join(text.split())


def test_the_command_to_type_again_begins_with_isfed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("site,x,y\na,1,2\na,2,3\nb,3,1\nb,4,5\n")
    words = ["diagnose", "mine.csv", "--agent", "site", "--target", "y", "--out", "there"]
    result = CliRunner().invoke(app, words, prog_name="python -m isfed")
    assert result.exit_code == 0, result.output
    said = Path("there/command.txt").read_text()
    assert said == "isfed diagnose mine.csv --agent site --target y\n"


def test_a_target_without_values_to_learn_is_said_by_both(run, tmp_path):
    rows = ["site,x,y", *(f"s{i % 4},{i % 7},3" for i in range(40))]
    (tmp_path / "flat.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    words = ["flat.csv.gz", "--agent", "site", "--target", "y"]
    code, text = run("diagnose", *words)
    assert code == 0, text
    assert "the target is always 3, so there is nothing to learn" in " ".join(text.split())
    assert not any(words in text for words in ("How sure", "drawn most", "options of ISFedAvg"))
    code, text = run("compare", *words, *SHORT, "--save", "m.json")
    assert code == 0, text
    assert "What to do next" in text
    assert "add --save" not in text
    assert "Keep FedAvg: the target is always 3" in " ".join(text.split())
    assert "isfed predict m.json NEW.csv" in " ".join(text.split())
    assert (tmp_path / "runs/compare-flat").is_dir()
    assert (tmp_path / "runs/diagnose-flat").is_dir()


def test_a_new_table_needs_only_what_the_model_looks_at(run, tmp_path):
    rows = [
        "site,x,ward,day,y",
        *(f"s{i % 4},{i + 5},A,{1 + i % 9}.2.2024,{2 * i}" for i in range(40)),
    ]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    code, text = run(
        "compare", "mine.csv", "--agent", "site", "--target", "y", *SHORT, "--save", "m.json"
    )
    assert code == 0, text
    for name, lines, said in (
        ("dots", "x,day\n1,1.2.2024", ""),
        ("iso", "x,day\n1,2024-02-01", ""),
        ("word", "x,day\n1,1.2.2024\nmany,2.2.2024", "line 3, column 'x': 'many' is not a number; "
         "correct it, since the model was trained on numbers there"),
        ("either", "x,day\n1,3/4/2024", "write them all like 2024-12-31"),
        ("short", "x\n1", "no column 'day'"),
    ):  # fmt: skip
        (tmp_path / f"{name}.csv").write_text(lines + "\n")
        code, text = run("predict", "m.json", f"{name}.csv", "--out", f"{name}-found.csv")
        assert code == (2 if said else 0), text
        assert said in " ".join(text.split())
    found = [(tmp_path / f"{name}-found.csv").read_text() for name in ("dots", "iso")]
    assert found[0] == found[1]


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_limits_are_told_as_the_command_line_spells_them(run, tmp_path, command):
    text = "who,a,b,y\n" + "".join(f"{'uv'[i % 2]},{i},{i * i},{i % 3}\n" for i in range(40))
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    words = [command, "x.csv.gz", "--agent", "who", "--target", "y"]
    for option, given, enough in [("--most-columns", 3, 4), ("--most-gigabytes", 1e-7, 2)]:
        code, said = run(*words, option, str(given))
        assert code == 2
        assert f"{option} {enough}" in " ".join(said.split())


def test_everything_that_is_wrong_is_told_at_once(run, tmp_path):
    rows = ["site,x,k,y", "a,1,red,", "a,2,7,3", "b,inf,red,4", "b,3,red,5", ",1,7,2"]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    options = ["--agent", "site", "--target", "y"]
    code, text = run("diagnose", "mine.csv", *options)
    assert code == 2
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert "error: 4 problems:" in text
    options_that_mend = ("--drop-missing-target", "--drop-missing-target", "--na inf", "--na")
    assert len(lines) == 4
    for option in options_that_mend:
        assert any(option in line for line in lines)
    mended = ["--drop-missing-target", "--na", "inf", "--missing", "0", "--categorical", "k"]
    code, text = run("diagnose", "mine.csv", *options, *mended, "--least-rows", "1")
    assert code == 0, text
    assert "- Left out: 1 row without an agent." in text
    assert "- Left out: 1 row without a target." in text


def test_a_file_without_a_header(run, tmp_path):
    rows = [f"s{i % 4},{(i * i) % 7},{i % 5}" for i in range(40)]
    (tmp_path / "bare.csv").write_text("\n".join(rows) + "\n")
    code, text = run("diagnose", "bare.csv", "--agent", "site", "--target", "y")
    assert code == 2
    assert "use --no-header" in " ".join(text.split())
    options = ["--agent", "1", "--target", "3", "--no-header"]
    code, text = run("compare", "bare.csv", *options, "--save", "m.json", *SHORT)
    assert code == 0, text
    assert "40 rows of 4 agents" in text
    (tmp_path / "new.csv").write_text("s1,3\ns2,4\n")
    code, text = run("predict", "m.json", "new.csv", "--append")
    assert code == 0, text
    assert text.startswith("1,2,predicted 3\ns1,3,")
