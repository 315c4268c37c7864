"""Compiled functions that Python runs itself, with the same bits, while there is little to do.

Compiling takes seconds. It is done once what Python has run adds up to the price of compiling.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.registry import CPUDispatcher

MOST_WORK = 200_000  # passes through a loop that Python runs before it compiles: about 0.2 seconds


def interpreted(function: Any) -> Callable[..., Any]:
    """The source of a compiled function for Python, with all that it calls."""
    return _source(function, {})


def _source(function: Any, made: dict[Any, Any]) -> Any:
    source = getattr(function, "py_func", function)
    if source not in made:
        names = dict(source.__globals__)
        made[source] = FunctionType(source.__code__, names, source.__name__, source.__defaults__)
        for name in names.keys() & {*source.__code__.co_names}:
            names[name] = _plain(names[name], made)
    return made[source]


def _plain(value: Any, made: dict[Any, Any]) -> Any:
    if isinstance(value, CPUDispatcher):
        return _source(value, made)
    if isinstance(value, ModuleType) and value.__name__.startswith("isfed."):
        return _Module(value, made)
    return value


class _Module:
    """A module of ours whose compiled functions are run by Python."""

    def __init__(self, module: ModuleType, made: dict[Any, Any]) -> None:
        self._module, self._made = module, made

    def __getattr__(self, name: str) -> Any:
        return _plain(getattr(self._module, name), self._made)


class InterpretFirst:
    """A compiled function that Python runs itself until compiling it has become worth while.

    Args:
        function: What is compiled.
        work: How often a call passes through its loops, from the arguments of the call.

    >>> from isfed.base.jit import compiled
    >>> @compiled
    ... def double(count):
    ...     return 2 * count
    >>> InterpretFirst(double, lambda count: 1)(4)
    8
    """

    def __init__(self, function: Any, work: Callable[..., int]) -> None:
        self.function, self.work = function, work
        # Where NUMBA_DISABLE_JIT is set Python runs it in any case.
        self.left = MOST_WORK if isinstance(function, CPUDispatcher) else 0
        self.plain: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.left > 0:
            self.left -= self.work(*args)
            if self.left > 0:
                self.plain = self.plain or interpreted(self.function)
                with np.errstate(over="ignore"):  # words of 64 bits are meant to wrap around
                    return self.plain(*args)
        return self.function(*args)
