"""Settings that every test shares."""

import os

from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it for its workers; tables keep their width

# Derandomised: a run is green or red whoever runs it and however often. Compilation makes the
# first example slow, hence no deadline. To look for new counterexamples:
#     pytest --hypothesis-profile=search
settings.register_profile(
    "isfed",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search", settings.get_profile("isfed"), derandomize=False, max_examples=2000
)
settings.load_profile("isfed")
