"""Compiled helpers, random streams and crash-safe files: what every room stands on."""
