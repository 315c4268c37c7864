"""`isfed methods` as a user meets it."""

import io
import json
import re

import pytest
from rich.console import Console

from isfed.methods.catalogue import CATALOGUE
from isfed.report.methods_table import HEADINGS, WIDE, as_json, as_table, entries, for_terminal


def test_the_command(run):
    code, text = run("methods", "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(text)] == [entry.name for entry in entries()]
    assert json.loads(as_json()) == json.loads(text)
    code, text = run("methods")
    assert code == 0
    assert all(entry.name in text for entry in CATALOGUE)
    assert as_table().row_count == len(entries())


def test_methods_are_selected_by_words_and_shown_with_their_constructors(run):
    code, text = run("methods", "ISFedAvg")
    text = " ".join(text.split())
    assert code == 0
    assert "ISFedAvg(step_size, num_active, agents=Memory()" in text
    assert "MOCHA" not in text
    code, text = run("methods", "--json", "--network", "--unbiased", "uniform")
    found = json.loads(text)
    assert code == 0
    assert 0 < len(found) < len(entries())
    for entry in found:
        assert entry["network"].startswith("yes")
        assert entry["unbiased"].startswith("yes")
        assert any("uniform" in entry[key].lower() for key in HEADINGS)
        assert entry["constructor"].startswith(entry["name"] + "(")
    code, text = run("methods", "no such method")
    assert code == 2
    assert "no method has 'no such method' in its entry" in text


def test_shells_can_complete_commands(run):
    code, text = run("--show-completion", "bash")
    assert code == 0
    assert "COMP_WORDS" in text


def printed(width):
    text = io.StringIO()
    Console(width=width, file=text).print(for_terminal(width))
    return text.getvalue()


@pytest.mark.parametrize("width", [60, 80, WIDE - 1, WIDE, 240])
def test_nothing_is_cut_in_a_terminal_of_any_width(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = " ".join(re.findall(r"[^\s│┃]+", text))
    for heading in list(HEADINGS.values())[2:]:
        assert set(heading.split()) <= set(words.split())
    found = set(words.split())
    for entry in entries():
        for key in HEADINGS:
            said = getattr(entry, key)
            assert width < WIDE or set(said.split()) <= found
            if width < WIDE:  # one cell in a row of its own lines: whole but for line breaks
                assert said in words
