"""Theory that computes: constants, bounds, exact variances, predicted gain, a certificate.

A name is looked up where it lives when it is first used: a simulation needs step-size limits alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isfed.theory.diagnosis import Diagnosis, diagnose
    from isfed.theory.msd_prediction import Bound, Prediction, predict
    from isfed.theory.paper_constants import Constants, Rule
    from isfed.theory.probabilities import TheoryError
    from isfed.theory.round_variance import Variance, gradient_variance
    from isfed.theory.strategies import Ways, compare_ways
    from isfed.theory.unbiasedness import Certificate, certify

_NAMES = {
    "unbiasedness": ("Certificate", "certify"),
    "paper_constants": ("Constants", "Rule"),
    "probabilities": ("TheoryError",),
    "diagnosis": ("Diagnosis", "diagnose"),
    "msd_prediction": ("Bound", "Prediction", "predict"),
    "round_variance": ("Variance", "gradient_variance"),
    "strategies": ("Ways", "compare_ways"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Bound",
    "Certificate",
    "Constants",
    "Diagnosis",
    "Prediction",
    "Rule",
    "TheoryError",
    "Variance",
    "Ways",
    "certify",
    "compare_ways",
    "diagnose",
    "gradient_variance",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use finds it without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
