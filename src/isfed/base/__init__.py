"""Compiled helpers, random streams and crash-safe files: what every room stands on."""

import os

# Where Intel's library of vector functions is installed, Numba would take `exp` and the like from
# it, with other last bits. Numba reads this once, when it is imported.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")
