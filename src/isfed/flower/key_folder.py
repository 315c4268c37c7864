"""The folder of keys over the years: agents come and go, certificates end and are renewed."""

# pyright: reportMissingImports=false
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from isfed.base import atomic_files
from isfed.flower.keys import (
    make_certificate,
    make_folder,
    make_key,
    private_pem,
    write_agent_key,
)

SOON_DAYS = 60  # a certificate that ends sooner is to be renewed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = {"ca", "server", "revoked"}


@dataclass(frozen=True)
class KeyEntry:
    """One line of the list: what there is, and until when it is valid (None: it has no end)."""

    name: str
    what: str
    since: datetime
    until: datetime | None = None

    def days_left(self, now: datetime | None = None) -> int | None:
        """Whole days; negative when it has ended."""
        return None if self.until is None else (self.until - (now or datetime.now(UTC))).days


class KeyFolder:
    """The keys that `isfed federation keys make` has made in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "ca.crt").exists():
            raise ValueError(
                f"{folder} holds no ca.crt: is it a folder of `isfed federation keys make`?"
            )

    def add(self, name: str) -> Path:
        """A key pair for one more agent; the file of its public half."""
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(
                f"{name!r} cannot be an agent's name: letters, digits, - and _, at most 64, and "
                f"none of {', '.join(sorted(RESERVED))}"
            )
        write_agent_key(self.folder / name)
        return self.folder / f"{name}.pub"

    def revoke(self, name: str) -> Path:
        """Remove an agent's secret; its public key, which is to be unregistered, is kept."""
        public = self.folder / f"{name}.pub"
        if name in RESERVED or not NAME.fullmatch(name) or not public.exists():
            known = ", ".join(path.stem for path in self._public_keys()) or "none"
            raise ValueError(f"there is no agent {name!r} in {self.folder}; there are: {known}")
        old = self.folder / "revoked"
        make_folder(old)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        kept = public.rename(old / f"{name}-{stamp}.pub")
        (self.folder / name).unlink(missing_ok=True)
        return kept

    def _public_keys(self) -> list[Path]:
        return sorted(self.folder.glob("*.pub"))

    def list(self) -> list[KeyEntry]:
        """Everything: certificates, then agents by name."""
        entries = []
        for file, what in (("ca.crt", "authority"), ("server.pem", "the cloud's")):
            if (path := self.folder / file).exists():
                held = _certificate(path)
                since, until = held.not_valid_before_utc, held.not_valid_after_utc
                entries.append(KeyEntry(path.stem, what, since, until))
        for public in self._public_keys():
            since = datetime.fromtimestamp(public.stat().st_mtime, UTC)
            entries.append(KeyEntry(public.stem, "agent", since))
        return entries

    def _authority_key(self) -> Any:
        """The key that signs."""
        path = self.folder / "ca.key"
        if not path.exists():
            raise ValueError(
                f"{self.folder} holds no ca.key, which signs: run this where it is kept"
            )
        try:
            return load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError) as error:  # a type error if it has a password
            raise ValueError(f"{path} is not the key that `keys make` wrote: {error}") from error

    def renew_authority(self) -> Path:
        """The same key for another while: what it has signed stays valid."""
        certificate = make_certificate("isfed federation", self._authority_key())
        path = self.folder / "ca.crt"
        atomic_files.write_whole(path, certificate.public_bytes(Encoding.PEM))
        return path

    def renew_server(self) -> Path:
        """Another key and certificate for the same hosts, under the same authority."""
        issuer = _certificate(self.folder / "ca.crt"), self._authority_key()
        path, key = self.folder / "server.pem", make_key()
        extensions = _certificate(path).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(name.value) for name in names]
        certificate = make_certificate(hosts[0], key, issuer, hosts)
        # Cut off between the two, they do not match: renewing once more mends it.
        secret = self.folder / "server.key"
        atomic_files.write_whole(secret, private_pem(key), mode=atomic_files.OWNER_ONLY)
        atomic_files.write_whole(path, certificate.public_bytes(Encoding.PEM))
        return path


def _certificate(path: Path) -> x509.Certificate:
    """What a file of `keys make` holds; a ValueError names one that was damaged since."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no certificate: {error}") from error


@contextmanager
def _control(link: str) -> Iterator[Any]:
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


def register_node(link: str, path: Path, *, name: str) -> int:
    """Let the agent with that public key in, under that name; the id of its node."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest

    with _control(link) as client:
        request = RegisterNodeRequest(public_key=try_load_public_key(path), name=name)
        return int(client.RegisterNode(request=request).node_id)


def unregister_node(link: str, path: Path) -> int:
    """Lock out the agent with that public key; how many nodes were registered with it."""
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.proto.control_pb2 import ListNodesRequest, UnregisterNodeRequest

    key = try_load_public_key(path)
    with _control(link) as client:  # `flwr supernode` knows nodes by their ids, not by their keys
        nodes = [node for node in client.ListNodes(ListNodesRequest()).nodes_info
                 if node.public_key == key and node.status != "unregistered"]  # fmt: skip
        for node in nodes:
            client.UnregisterNode(request=UnregisterNodeRequest(node_id=node.node_id))
    return len(nodes)
