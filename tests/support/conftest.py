"""These modules are imported by tests and by the processes they start; they hold no tests."""

collect_ignore_glob = ["*.py"]
