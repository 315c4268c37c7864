"""docs/appendix/networks.md is what docs/make/networks_page.py makes of networks.json."""

import copy
import importlib.util
from pathlib import Path

import pytest

from isfed.base.atomic_files import read_json

PLACE = Path(__file__).parents[2] / "docs" / "make" / "networks_page.py"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("networks_page", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kept(maker):
    return read_json(maker.KEPT)


def test_the_page_follows_its_numbers(maker, kept):
    text = maker.PAGE.read_text(encoding="utf-8")
    made = text.split(maker.BEGIN, 1)[1].split(maker.END, 1)[0]
    assert made == f"\n{maker.PICTURE}\n{maker.tables(kept)}\n"


def test_a_table_shows_what_was_not_reached_and_what_diverged(maker, kept):
    found = copy.deepcopy(next(iter(kept.values())))
    first, second = found["rows"][:2]
    first["rounds_to"]["FedAvg, averaged"] = None
    second["diverged"] = "in round 3"
    lines = maker.table(found).splitlines()
    assert lines[2].split(" | ")[5] == "-"
    assert lines[3].startswith(f"| {second['name']} | {second['step_size']:.3g} | diverged |")
    assert len({line.count("|") for line in lines}) == 1


def test_the_default_stands_to_a_rival_as_its_curve_says(maker, kept):
    name, found = next(iter(kept.items()))
    rows = {row["name"]: row for row in found["rows"]}
    (line,) = [
        x for x in maker.against(kept, "FedAvg, averaged").splitlines() if f"| {name} |" in x
    ]
    first = rows["default"]["rounds_to"]["FedAvg, averaged"]
    assert line.endswith(f"| {first} of {found['rounds']} |")


def test_the_figure_is_drawn_from_what_is_kept(maker, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(maker, "FIGURE", tmp_path / "accuracy.png")
    maker.draw(kept)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
