"""The notebooks run from top to bottom and print what they show; `make test-docs` runs this."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import nbformat  # noqa: E402  # pyright: ignore[reportMissingImports]
from site_notebooks import printed, run_notebook  # noqa: E402  # pyright: ignore

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.skipif(
    os.environ.get("ISFED_TEST_DOCS") != "1", reason="set ISFED_TEST_DOCS=1: about a minute each"
)


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
    if "network" in path.stem and importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    shown = nbformat.read(path, as_version=4)
    ran = run_notebook(path)
    if not any(printed(cell) for cell in shown.cells):
        return  # its outputs have not been kept yet (make notebooks): that it runs is all
    for before, after in zip(shown.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            assert printed(after) == printed(before), before.source
