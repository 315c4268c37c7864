"""Objects that a configuration names as "package.module:name"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def import_named(name: str) -> Callable[..., Any]:
    """The class or function that "package.module:name" stands for; ValueError says what is wrong.

    >>> import_named("math:sqrt")(9.0)
    3.0
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name!r} cannot be imported: {reason}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is {found!r}, not a class or a function")
    return found
