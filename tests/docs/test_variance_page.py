"""The appendix on variance: what its study file says is what the kept numbers and tables have."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = ROOT / "docs" / "make"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(MAKE))
    import variance_page  # pyright: ignore[reportMissingImports]

    yield variance_page
    for name in ("variance_page", "variance_problems"):
        sys.modules.pop(name, None)


def test_the_study_has_the_cells_and_methods_of_the_kept_numbers(page):
    assert [cell.title for cell in page.cells()] == list(page.kept())
    assert all(list(rows) == page.methods() for rows in page.kept().values())
    for cell, task in page.tasks().items():
        assert all(method.num_active == cell.active for method in task.algorithms.values())
        assert (task.clock is not None) == cell.absent
        assert task.tuned == (() if cell.preset else tuple(page.methods()))
        steps = {row.step for row in page.kept()[cell.title].values()} - {None}
        assert steps <= ({0.01} if cell.preset else set(task.step_sizes.grid))


def test_the_tables_are_those_of_the_appendix(page):
    text = page.PAGE.read_text(encoding="utf-8").split(page.BEGIN)[1].split(page.END)[0]
    written = re.findall(r"^\| (?!\|)(.*) \|$", text.partition(page.PREDICTED)[0], re.M)
    for cell in page.cells():
        best = page.best_of(cell)
        for method in page.methods():
            shown = page.as_text(cell.preset, *page.result(cell, method))
            shown = f"**{shown}**" if method == best else shown
            rows = [row.split(" | ") for row in written if row.startswith(f"{method} | ")]
            assert any(shown in row for row in rows), (cell.title, method, shown)


def test_the_second_study_runs_what_was_recommended_and_what_was_best(page):
    study = page.read_experiment(MAKE / "variance_again.toml", trust=MAKE)
    assert len(study.tasks) == 8
    for task in study.tasks:
        kept = page.kept()[task.title.removesuffix(": ")]
        assert len(task.algorithms) == 2
        for name, method in task.algorithms.items():
            assert method.step_size == kept[name].step
    assert set(study.seeds).isdisjoint(page.read_experiment(page.STUDY, trust=MAKE).seeds)


def test_a_results_folder_takes_the_place_of_the_kept_numbers(page, tmp_path, monkeypatch):
    from types import SimpleNamespace as Record

    kept = tmp_path / "kept.json"
    kept.write_bytes(page.KEPT.read_bytes())
    monkeypatch.setattr(page, "KEPT", kept)
    summary = {"problem": "regression, L=6", "method": "uniform", "levels": [1.0, 3.0]}
    other = summary | {"method": "SCAFFOLD", "levels": None}
    rows = [Record(summary=one, step_size=0.01) for one in (summary, other)]
    monkeypatch.setattr(page, "load_results", lambda folder: Record(algorithms=rows))
    before = page.kept()
    page.collect(tmp_path)
    after = page.kept()
    assert after["regression, L=6"]["uniform"] == (2.0, 1.0, 0.01, 2)
    assert page.as_text(True, *after["regression, L=6"]["SCAFFOLD"][:2]) == "diverged"
    assert {t: r for t, r in after.items() if t != "regression, L=6"} == {
        t: r for t, r in before.items() if t != "regression, L=6"
    }
