"""Registering and unregistering agents at a SuperLink, by their keys."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx


@contextmanager
def control(link: str) -> Iterator[Any]:
    """The operator's connection of that name in $FLWR_HOME/config.toml."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    client = None
    try:
        client = init_http_client_from_connection(read_superlink_connection(link))
        yield client
    except (httpx.HTTPError, click.ClickException) as error:
        raise ValueError(f"the connection {link!r} failed: {error}") from error
    finally:
        if client is not None:
            client.close()


def public_bytes(path: Path) -> bytes:
    """A public key as Flower's messages carry it."""
    from cryptography.hazmat.primitives import serialization
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = serialization.load_ssh_public_key(path.read_bytes())
    return public_key_to_bytes(key)


def register(link: str, path: Path, *, name: str) -> int:
    """Let the agent with that public key in, under that name; the id of its node."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    with control(link) as client:
        request = RegisterNodeRequest(public_key=public_bytes(path), name=name)
        return int(client.RegisterNode(request=request).node_id)


def unregister(link: str, path: Path) -> int:
    """Lock out the agent with that public key; how many nodes were registered with it."""
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

    key, found = public_bytes(path), 0
    with control(link) as client:
        for node in client.ListNodes(ListNodesRequest()).nodes_info:
            if node.public_key == key and node.status != "unregistered":
                client.UnregisterNode(request=UnregisterNodeRequest(node_id=node.node_id))
                found += 1
    return found
