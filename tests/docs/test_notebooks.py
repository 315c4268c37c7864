"""The notebooks run from top to bottom and print what they show; `make test-docs` runs this."""

import importlib.util
import math
import os
import re
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


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
ROUNDING = 1e-12  # what is smaller is nothing but rounding


def alike(one: str, other: str, close: float) -> bool:
    """The same words, and numbers that agree as far as they do on every processor.

    Networks are trained by PyTorch's kernels, which differ by the processor; w^o by LAPACK's.
    """
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=close, abs_tol=ROUNDING) for a, b in pairs)


TORCH = ("a_network", "one_machine")


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
    if path.stem in TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch")
    shown = nbformat.read(path, as_version=4)
    ran = run_notebook(path)
    if not any(printed(cell) for cell in shown.cells):
        return  # its outputs have not been kept yet (make notebooks): that it runs is all
    close = 0.05 if path.stem in TORCH else 1e-6
    for before, after in zip(shown.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            assert alike(printed(after), printed(before), close), before.source


def test_what_is_alike():
    assert alike("msd 1.0000001e-3 after 5", "msd 1e-3 after 5", 1e-6)
    assert alike("deviation 3.2e-16", "deviation 2.1e-16", 1e-6)
    assert not alike("msd 1.1e-3", "msd 1e-3", 1e-6)
    assert not alike("BIASED, 1", "unbiased, 1", 1e-6)
    assert alike("accuracy 0.84", "accuracy 0.85", 0.05)
