"""Without Flower or PyTorch their rooms cannot be imported, and pytest must not try to."""

from importlib.util import find_spec

NEEDED = {"flwr": "isfed/flower", "torch": "isfed/torch"}
collect_ignore = [room for library, room in NEEDED.items() if find_spec(library) is None]
