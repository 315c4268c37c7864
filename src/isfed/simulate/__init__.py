"""Rounds x repetitions, in process.

The package can be called: `isfed.simulate(problem, algorithm, rounds=...)` is the function
`isfed.simulate.simulate_call.simulate`, and `isfed.simulate.simulate_call` is still the module.
"""

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from isfed.simulate.run_history import DivergenceError, History, Measure, Steady, decibels
from isfed.simulate.simulate_call import NoMsdWarning, make_run, simulate

__all__ = [
    "DivergenceError",
    "History",
    "Measure",
    "NoMsdWarning",
    "Steady",
    "decibels",
    "make_run",
    "simulate",
]


class _CallablePackage(ModuleType):
    """A package that is also its main function: one name cannot be bound to both."""

    def __call__(self, *args: Any, **options: Any) -> History:
        return simulate(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(simulate)

    def __reduce__(self) -> tuple:
        return importlib.import_module, (self.__name__,)  # a plain module cannot be pickled


sys.modules[__name__].__class__ = _CallablePackage
