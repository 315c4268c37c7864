"""Theory that computes: constants, bounds, exact variances, predicted gain, a certificate."""

from isfed.theory.bound import Bound, Rule, TheoryError
from isfed.theory.certificate import Certificate, certify
from isfed.theory.constants import Constants
from isfed.theory.diagnosis import Diagnosis, diagnose
from isfed.theory.prediction import Prediction, predict
from isfed.theory.variance import Variance, gradient_variance
from isfed.theory.ways import Ways, compare_ways

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
