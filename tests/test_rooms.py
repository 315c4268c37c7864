"""The rooms of the house: each imports only those above it."""

import module_graph


def test_every_module_is_in_a_room():
    assert module_graph.homeless() == []


def test_no_import_leads_upwards():
    assert module_graph.steps_upwards() == []


def test_no_modules_import_each_other():
    assert module_graph.cycles() == []


def test_no_module_is_long():
    assert module_graph.too_long() == []


def test_an_upward_import_would_be_found(monkeypatch, tmp_path):
    package = tmp_path / "isfed"
    (package / "base").mkdir(parents=True)
    (package / "cli").mkdir()
    for name in ("__init__.py", "base/__init__.py", "cli/__init__.py"):
        (package / name).write_text("")
    (package / "base" / "low.py").write_text("def f():\n    from isfed.cli import high\n")
    (package / "cli" / "high.py").write_text("import isfed.base.low\nfrom isfed.cli import side\n")
    (package / "cli" / "side.py").write_text("import isfed.cli.high\n" + "\n" * 400)
    monkeypatch.setattr(module_graph, "PACKAGE", package)
    assert module_graph.steps_upwards() == ["isfed.base.low imports isfed.cli.high"]
    assert module_graph.cycles() == ["isfed.cli.high -> isfed.cli.side -> isfed.cli.high"]
    assert module_graph.too_long() == ["cli/side.py has 401 lines"]
