"""examples/flower: the app before and after the change, and the size of the change."""

# pyright: reportMissingImports=false
import difflib
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_grid import LocalGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture(params=["before", "after"])
def apps(request, monkeypatch):
    """The two apps of one version, imported as Flower imports them."""
    monkeypatch.syspath_prepend(str(EXAMPLE / request.param))
    for name in [name for name in sys.modules if name.split(".")[0] == "fedapp"]:
        monkeypatch.delitem(sys.modules, name)
    client = importlib.import_module("fedapp.client_app").app
    server = importlib.import_module("fedapp.server_app").app
    yield client, server
    for name in [name for name in sys.modules if name.split(".")[0] == "fedapp"]:
        del sys.modules[name]


def test_both_versions_train(apps, tmp_path):
    client, server = apps
    configs = [{"partition-id": k, "isfed-state": str(tmp_path)} for k in range(3)]
    losses = []

    def note(_, reply):
        if "metrics" in reply.content and "loss" in reply.content["metrics"]:
            losses.append(reply.content["metrics"]["loss"])
        return reply

    grid = LocalGrid(client, configs, note)
    server(grid, SimpleNamespace(run_config={"rounds": 20}, state=None))
    assert len(losses) == 60
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])  # all three agents, last round and first


def test_the_change_is_at_most_15_lines():
    changed = []
    for path in sorted((EXAMPLE / "before").rglob("*")):
        if path.suffix not in (".py", ".toml"):
            continue
        other = EXAMPLE / "after" / path.relative_to(EXAMPLE / "before")
        lines = difflib.unified_diff(
            path.read_text().splitlines(), other.read_text().splitlines(), lineterm="", n=0
        )
        changed += [x for x in lines if x[0] in "+-" and x[:3] not in ("+++", "---")]
    documented = [
        line
        for line in (EXAMPLE / "change.diff").read_text().splitlines()
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert changed == documented
    assert len(changed) <= 15


def test_an_old_client_under_the_new_server_fails_loudly_and_saves_nothing(monkeypatch, tmp_path):
    """A leftover of `before/` answers in the wrong form: the run must not end as if it learned."""
    pytest.importorskip("torch")
    folder, apps = EXAMPLE.parent / "flower-torch", {}
    for version, part in (("before", "client_app"), ("after", "server_app")):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchapp"]:
            monkeypatch.delitem(sys.modules, name)
        with monkeypatch.context() as path:
            path.syspath_prepend(str(folder / version))
            apps[part] = importlib.import_module(f"torchapp.{part}").app
    model = tmp_path / "model.pt"
    model.write_bytes(b"a better one")
    grid = LocalGrid(apps["client_app"], [{"partition-id": k} for k in range(3)])
    run_config = {"rounds": 9, "model": str(model)}
    with pytest.raises((RuntimeError, ValueError), match=r"nobody's answer|every agent was left"):
        apps["server_app"](grid, SimpleNamespace(run_config=run_config, state=None))
    assert model.read_bytes() == b"a better one"
