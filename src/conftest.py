"""Without Flower its adapter cannot be imported, and pytest must not try to."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["isfed/flower"]
