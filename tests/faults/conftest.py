"""`make test-faults` runs these as a program: they take an hour, and are no part of `make test`."""

collect_ignore_glob = ["*.py"]
