"""The root of the package: every public name resolves, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import isfed

HEAVY = ("numba", "numpy", "scipy", "pyarrow", "matplotlib", "sklearn")


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_root_loads_nothing_heavy():
    code = f"import isfed, sys; print([m for m in {HEAVY} if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]"


@pytest.mark.parametrize("name", isfed.__all__)
def test_every_public_name_resolves(name):
    assert getattr(isfed, name) is not None
    assert name in dir(isfed)


def test_type_checkers_and_the_root_see_the_same_names():
    tree = ast.parse(Path(isfed.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {  # (name, where from); `as` the same name says that it is exported
        (name.asname, node.module.removeprefix("isfed."))
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
    assert imported == {*isfed._homes().items()}
    assert {name for name, _ in imported} == {*isfed.__all__} - {"__version__"}


def test_the_root_has_its_public_names_and_rooms_and_no_other():
    others = {name for name in dir(isfed) if name[:2] != "__"} - {*isfed.__all__} - isfed._ROOMS
    assert others == set()
    code = """
import isfed
from isfed import *
print(*(name for name in {*vars(isfed)} - {*isfed.__all__} if name[0] != "_"))
"""
    assert {*in_a_fresh_process(code).split()} <= {*isfed._ROOMS, "cli", "old_names", "report"}


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'isfed' has no attribute 'nonsense'"):
        isfed.nonsense  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        from isfed import nonsense  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]


def test_names_of_version_0_1():
    assert isfed.Local is isfed.LocalOptions  # pyright: ignore[reportAttributeAccessIssue]
    assert isfed.Turns is isfed.TrainRequest  # pyright: ignore[reportAttributeAccessIssue]
    assert isfed.Rules is isfed.AgentConfig  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match=r"isfed.Cloud is no more: isfed.Federated"):
        from isfed import Cloud  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]


ORDERS = (
    "import isfed",
    "from isfed import simulate; import isfed",
    "import isfed.simulate",
    "import isfed.simulate.simulate_call; from isfed import simulate",
    "from isfed import simulate; import isfed.simulate.simulate_call",
    "from isfed.simulate import simulate; import isfed",
    "from isfed.simulate.simulate_call import simulate; import isfed",
    "import isfed.simulate.simulate_call as run, isfed",
)
BOTH = """
isfed, found = names["isfed"], names.get("simulate")
assert isinstance(isfed.simulate, ModuleType) and callable(isfed.simulate)
assert isinstance(isfed.simulate.simulate_call, ModuleType)
assert isfed.simulate.simulate is isfed.simulate.simulate_call.simulate
assert found in (None, isfed.simulate, isfed.simulate.simulate_call.simulate)
try:
    isfed.simulate(None, None, rounds=1, nonsense=2)
except TypeError as error:
    assert "unexpected keyword argument 'nonsense'" in str(error)
    print("both")
"""


def test_simulate_is_a_function_and_a_package_in_every_order_of_import():
    # One process for all, which forgets the package each time: NumPy and Numba are loaded once.
    code = f"""
import sys
from types import ModuleType
for order in {ORDERS}:
    for module in [m for m in sys.modules if m == "isfed" or m.startswith("isfed.")]:
        del sys.modules[module]
    names = {{}}
    exec(order, names)
    exec({BOTH!r})
"""
    assert in_a_fresh_process(code).split() == ["both"] * len(ORDERS)


def test_the_callable_package_runs_and_shows_the_arguments_of_the_function():
    from isfed import FedAvg, simulate

    problem = isfed.PAPER.replace(num_agents=4, num_examples=20).make()
    history = simulate(problem, FedAvg(step_size=0.01, num_active=2), rounds=3)
    assert history.msd.shape == (1, 3)
    assert inspect.signature(simulate) == inspect.signature(isfed.simulate.simulate_call.simulate)  # pyright: ignore[reportFunctionMemberAccess]
    assert "simulate(problem" in str(inspect.getdoc(isfed.simulate))


def test_the_callable_package_can_be_pickled():
    assert pickle.loads(pickle.dumps(isfed.simulate)) is isfed.simulate
    again = pickle.loads(pickle.dumps(partial(isfed.simulate, rounds=3)))
    assert again.func is isfed.simulate


def test_modules_are_found_by_their_old_names():
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import isfed.experiments.registry as old
    from isfed.algorithms.fedprox import FedProx
    from isfed.base.streams import Purpose
import isfed, isfed.studies.name_registry as new
from isfed.base import random_streams
print(old is new, FedProx is isfed.FedProx, Purpose is random_streams.Purpose, new.__spec__.name)
print(*(str(w.message).split(";")[0] for w in caught), sep="|")
"""
    found, said = in_a_fresh_process(code).splitlines()
    assert found == "True True True isfed.studies.name_registry"
    assert "isfed.experiments.registry is now isfed.studies.name_registry" in said.split("|")
    assert "isfed.base.streams is now isfed.base.random_streams" in said.split("|")


def test_every_new_name_of_a_module_exists():
    from isfed.old_names import RENAMED

    folder = Path(isfed.__file__).parent
    for old, new in RENAMED.items():
        assert folder.joinpath(*new.split(".")).with_suffix(".py").exists(), new
        assert not folder.joinpath(*old.split(".")).with_suffix(".py").exists(), old
