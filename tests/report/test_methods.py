"""`isfed methods` and docs/methods.md: one entry for every method, and one source for all."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import isfed
from isfed.methods.catalogue import CATALOGUE
from isfed.methods.over_network import network_support, over_network
from isfed.report.methods_table import HEADINGS, TABLE_1, as_markdown, entries
from isfed.studies.name_registry import METHODS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_method_has_one_entry_and_can_be_imported():
    names = [entry.name for entry in CATALOGUE]
    assert set(names) <= set(METHODS)
    assert len(set(names)) == len(names)
    assert [entry.name for entry in entries()] == [*names, *(n for n in METHODS if n not in names)]
    for name in names:
        assert callable(getattr(isfed, name))


def test_every_entry_says_everything():
    for entry in entries()[: len(CATALOGUE)]:
        for key in HEADINGS:
            assert getattr(entry, key).strip("-"), f"{entry.name}: {key}"
        assert re.search(r"(19|20)\d\d", entry.paper)


def test_what_has_no_public_code_says_so():
    without = {entry.name for entry in CATALOGUE if not entry.confirmed}
    assert {"FOLB", "HybridFL"} <= without
    for entry in CATALOGUE:
        if entry.name in ("FOLB", "HybridFL"):
            assert "nconfirmed" in (METHODS[entry.name].__doc__ or "")


def test_the_page_is_up_to_date():
    """If this fails: python -m isfed methods --markdown, between the two marks."""
    found = re.search(
        r"<!-- generated -->\n(.*?)<!-- end -->",
        (DOCS / "appendix" / "methods.md").read_text(),
        re.S,
    )
    assert found
    assert found[1].strip() == as_markdown().strip()


def test_the_page_says_which_methods_run_over_a_network():
    rows = [line for line in (DOCS / "methods.md").read_text().splitlines() if line[:2] == "| "]
    for entry in entries()[: len(CATALOGUE)]:
        (row,) = [row for row in rows if f"`{entry.name}`" in row]
        said = "yes, by `Strategy.start`" if "Strategy.start" in entry.network else entry.network
        assert row.startswith(f"| {said.partition(':')[0].partition(', it')[0]}"), entry.name


def test_table_1_names_methods_that_exist():
    for row in TABLE_1:
        for name in re.findall(r"[A-Z]\w+", row[0]):
            assert name in METHODS


EXAMPLE: dict[str, Any] = {
    "step_size": 0.1, "num_active": 2, "steps": 2, "strong": 1.0, "shift": 80.0
}  # fmt: skip


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_the_column_over_a_network_says_what_a_network_does(name):
    said = next(entry.network for entry in entries() if entry.name == name)
    wanted = inspect.signature(METHODS[name]).parameters.values()
    given = {p.name: EXAMPLE[p.name] for p in wanted if p.default is p.empty}
    method = METHODS[name](**given)
    if said.startswith("no, it reads the problem: "):
        with pytest.raises(ValueError, match=re.escape(said.partition(": ")[2])):
            over_network(method, num_agents=4)
    else:  # Flower's own loop opens and closes rounds; others need Strategy.start
        can_open = hasattr(over_network(method, num_agents=4), "open")
        assert said == ("yes" if can_open else "yes, by Strategy.start: it has a round of its own")


def test_options_decide_where_a_method_runs():
    common: Any = {"step_size": 0.1, "num_active": 2}
    assert network_support(isfed.FOLB(**common)) == "yes"
    assert "Strategy.start" in network_support(isfed.FOLB(penalty=0.1, **common))
    assert "Strategy.start" in network_support(isfed.RestartedSGD(step_size=0.1, average="pre"))
    assert network_support(isfed.DynamicFedAvg(drift=0.1, **common)).startswith("no")
    assert network_support(isfed.ISFedAvg(agents=isfed.Oracle(), **common)).startswith("no")


def test_the_readme_counts_the_methods():
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    said = [entry.network for entry in entries()[: len(CATALOGUE)]]
    started = sum("Strategy.start" in network for network in said)
    running = sum(network.startswith("yes") for network in said)
    assert f"with {len(said) - 1} other federated methods" in text
    assert f"All {len(said)} methods of `isfed methods` run in one process" in text
    assert f"{running} of them run: {running - started} also in Flower's own loop" in text
    assert f"{started} by `Strategy.start`" in text
