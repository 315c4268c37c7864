"""docs/results.md: its examples run, and it names all that a folder holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.studies.results_folder import WRITTEN

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
TEXT = PAGE.read_text()
SAID = {word for words in re.findall(r"`([^`\n]+)`", TEXT) for word in re.split(r"[^\w.-]+", words)}


@pytest.fixture(scope="module")
def page():
    """The names that the page defines, after all its blocks have run in order."""
    names = {"__name__": "results"}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.fixture(scope="module")
def folders(page, tmp_path_factory):
    """An experiment, a comparison and a diagnosis."""
    here = tmp_path_factory.mktemp("folders")
    rows = [f"s{i % 4},{i % 7},{(3 * i) % 11}" for i in range(60)]
    (here / "table.csv").write_text("\n".join(["site,x,y", *rows]))
    columns = [str(here / "table.csv"), "--agent", "site", "--target", "y"]
    for words in (["compare", *columns, "--rounds", "20", "--repetitions", "2"],
                  ["diagnose", *columns]):  # fmt: skip
        found = CliRunner().invoke(app, [*words, "--out", str(here / words[0])])
        assert found.exit_code == 0, found.output
    return [page["folder"], here / "compare", here / "diagnose"]


def test_the_examples_give_what_they_say(page):
    results, ours = page["results"], page["ours"]
    assert [a.name for a in results.algorithms] == ["FedAvg", "ISFedAvg, memory", "FedProx"]
    assert ours.rounds.tolist() == list(range(1, 201))
    assert ours.repetitions["steady_msd"].shape == (4,)
    assert page["ratio"] > 0


def test_every_file_is_named():
    for name in WRITTEN:
        stem, end = name.rsplit(".", 1)
        assert name in SAID or (stem in SAID and f".{end}" in SAID), name


def test_every_column_is_named_with_what_it_holds(folders):
    seen = set()
    for folder in folders:
        for path in folder.glob("*.parquet"):
            seen.add(path.name)
            for column in pq.read_schema(path).names:
                assert column in SAID or column.startswith("final_"), (path.name, column)
    assert seen == {name for name in WRITTEN if name.endswith(".parquet")}


def test_every_key_is_named(folders):
    common = None
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        common = set(summary) if common is None else common & set(summary)
        if summary["kind"] == "experiment":
            for key in (*summary, *summary["algorithms"][0]):
                assert key in SAID, key
    assert common == {
        "format", "kind", "digest", "experiment", "no_msd", "algorithms", "made_with",
    }  # fmt: skip
