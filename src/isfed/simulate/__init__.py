"""Rounds x repetitions, in process."""

from isfed.simulate.history import DivergenceError, History, Measure, Steady, decibels
from isfed.simulate.run import simulate

__all__ = ["DivergenceError", "History", "Measure", "Steady", "decibels", "simulate"]
