"""The examples of README.md and docs/networks.md run as printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = [
    (name, block)
    for name in ("README.md", "docs/networks.md")
    for block in re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    if "isfed.torch" in block
]


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_it_runs_as_printed(name, block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, name, "exec"), {})
    assert capsys.readouterr().out
    saves = "save_model" in block or "folder=" in block
    assert bool(list(tmp_path.rglob("*.safetensors"))) == saves


def test_the_file_for_isfed_run_is_read():
    import tomllib

    from isfed.studies import make_experiment

    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/networks.md").read_text(), re.DOTALL)
    experiment = make_experiment(tomllib.loads(text))
    assert experiment.source.make().num_agents == 30


def test_both_pages_have_an_example():
    assert {name for name, _ in BLOCKS} == {"README.md", "docs/networks.md"}
