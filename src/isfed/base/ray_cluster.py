"""The Ray cluster that $RAY_ADDRESS names, or one of our own on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
import warnings
from typing import Any
from urllib.parse import urlsplit

SECONDS = 10.0  # for a cluster to take a connection; Ray itself tries for minutes, silently


def connect_ray(processors: int | None) -> bool:
    """Connect unless that was done before; whether the caller is to disconnect at the end.

    Args:
        processors: of a cluster of our own, all of this machine unless given.
    """
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "backend='ray' needs Ray, which is not installed: pip install 'isfed[ray]'"
        )
    import ray  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address is None:
        options |= {"address": "local", "num_cpus": processors, "include_dashboard": False}
    try:
        check_reachable(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(**options)
    except (OSError, RuntimeError, ValueError) as error:  # the last two: other versions
        where = f"RAY_ADDRESS={address}" if address else "this machine"
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConnectionError(
            f"no Ray cluster can be used at {where}: {lines[0].rstrip('.')}. Start one by `ray "
            "start --head` there, with the same Python and Ray, or unset RAY_ADDRESS to use this "
            "machine alone"
        ) from error
    return True


def check_reachable(address: str | None) -> None:
    """An OSError unless somebody listens there; names without a port, such as auto, are Ray's."""
    given = address or ""
    parts = urlsplit(given if "://" in given else f"//{given}")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{address} should be a host and a port, as 10.0.0.1:6379") from error
    if parts.hostname and port:
        socket.create_connection((parts.hostname, port), timeout=SECONDS).close()
