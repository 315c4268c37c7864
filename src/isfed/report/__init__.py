"""Figures and tables from a results folder; it never sees a problem or an algorithm."""
