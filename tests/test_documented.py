"""Every public name explains every argument where `help()` shows it: `name: what it is`.

A record may inherit its fields; then the class that it inherits them from explains them.
"""

import ast
import importlib
import inspect
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import isfed

ENTRY = re.compile(r"^(?: {4})?(\*{0,2}\w+(?:, \w+)*): \S", re.M)
OPTIONAL = {"isfed.torch": "torch", "isfed.flower": "flwr"}
ROOMS = ("isfed", "isfed.theory", "isfed.datasets", "isfed.studies", *OPTIONAL)


def public(room: str) -> list[str]:
    """What a room exports, read from its source: an extra may be missing."""
    if room == "isfed":
        return [name for name in isfed.__all__ if name[:2] != "__"]
    path = Path(isfed.__file__).parent.joinpath(*room.split(".")[1:], "__init__.py")
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [name for name in ast.literal_eval(node.value) if name[:2] != "__"]
    return []


NAMES = [(room, name) for room in ROOMS for name in public(room)]


def explained(found: Any) -> set[str]:
    """The arguments that the docstring of a name explains, and those of what it derives from."""
    kinds = inspect.getmro(found) if inspect.isclass(found) else (found,)
    texts = [inspect.cleandoc(kind.__doc__ or "") for kind in kinds if kind is not object]
    if inspect.isclass(found):
        texts.append(inspect.getdoc(found.__init__) or "")
    names = [name for text in texts for group in ENTRY.findall(text) for name in group.split(", ")]
    return {name.lstrip("*") for name in names}


def arguments(found: Any) -> list[str]:
    if not callable(found):
        return []
    if inspect.isclass(found) and issubclass(found, BaseException | Enum):
        return []
    if getattr(found, "_is_protocol", False):  # nobody calls it; its methods say what they take
        return []
    try:
        parameters = inspect.signature(found).parameters
    except ValueError:  # NoneType and the like
        return []
    return [name for name in parameters if name not in ("self", "cls") and name[:1] != "_"]


def missing(room: str, name: str) -> list[str]:
    found = getattr(importlib.import_module(room), name)
    if inspect.ismodule(found):  # `simulate`, which can be called
        found = found.simulate
    known = explained(found)
    return [argument for argument in arguments(found) if argument not in known]


@pytest.mark.parametrize(("room", "name"), NAMES)
def test_every_argument_is_explained(room, name):
    if room in OPTIONAL:
        pytest.importorskip(OPTIONAL[room])
    assert missing(room, name) == []


def test_the_scan_sees_what_is_missing():
    def half(known: int, unknown: int) -> None:
        """Half explained.

        known: an argument.
        """

    assert explained(half) == {"known"}
    assert arguments(half) == ["known", "unknown"]


def test_public_records_have_a_sentence():
    for name in isfed.__all__:
        found = getattr(isfed, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert inspect.getdoc(found), f"{name} says nothing"
