"""`isfed methods` as a user meets it."""

import json

from isfed.algorithms.catalogue import CATALOGUE
from isfed.report.methods import as_json, as_table, entries


def test_the_command(run):
    code, text = run("methods", "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(text)] == [entry.name for entry in entries()]
    assert json.loads(as_json()) == json.loads(text)
    code, text = run("methods")
    assert code == 0
    assert all(entry.name in text for entry in CATALOGUE)
    assert as_table().row_count == len(entries())
