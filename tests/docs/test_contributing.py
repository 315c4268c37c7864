"""The walk of a round and the table of what to add name files and methods that exist."""

from __future__ import annotations

import re
from pathlib import Path

from isfed.methods.estimators import HorvitzThompson
from isfed.methods.part_checks import PARTS
from isfed.methods.servers import Add
from isfed.methods.uniform_samplers import AllAgents

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LAYOUT = PAGE.partition("## Layout")[2].partition("## What a test looks like")[0]


def test_files_exist():
    named = set(re.findall(r"\b[a-z_]+/[a-z_]+\.py\b", LAYOUT))
    assert len(named) > 15
    places = (ROOT / "src" / "isfed", ROOT / "tests", ROOT)
    assert not {name for name in named if not any((top / name).is_file() for top in places)}


def test_the_walk_calls_what_parts_have():
    walk = LAYOUT.partition("```")[2].partition("```")[0]
    parts = {"sampler": AllAgents(), "estimator": HorvitzThompson(), "server": Add()}
    called = re.findall(r"\b(sampler|estimator|server)\.([a-z]+)", walk)
    assert len(called) == 6
    assert all(callable(getattr(parts[part], name)) for part, name in called)


def test_the_table_names_what_a_part_must_have():
    for part in ("sampler", "estimator", "server"):
        row = next(line for line in LAYOUT.splitlines() if f"{part} |" in line)
        written = row.split("|")[2].partition(" in ")[0]
        assert re.findall(r"`([a-z]+)`", written) == list(PARTS[part])
