"""Certificates and keys: an authority, the cloud's certificate, one key pair for every agent."""

# pyright: reportMissingImports=false
from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isfed.base import atomic_files

VALID_DAYS = 825  # the longest that common TLS clients accept
SOON_DAYS = 60  # a certificate that ends sooner is to be renewed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = {"ca", "server", "revoked"}
AUTHORITY = "isfed federation"  # the subject of its certificate


def _write(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a new file, with its mode from the first byte on."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(
            f"{path} exists and is not overwritten: a federation may be using it; "
            "choose another folder or remove it yourself"
        ) from None


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def _host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host or any(c.isspace() or c in "/:" for c in host):
                raise ValueError(
                    f"host {host!r} must be a name or an address, without port and scheme"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _new_key() -> Any:
    """A secret key; SuperLink and SuperNode accept elliptic curves."""
    return ec.generate_private_key(ec.SECP384R1())


def _certificate(subject: str, key: Any, issuer: Any = None, hosts: Sequence[str] = ()) -> bytes:
    """A certificate for `key`, signed by the issuer (certificate, key), or by itself if none."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.now(UTC)
    until, signer, authority = now + timedelta(days=VALID_DAYS), key, issuer is None
    if issuer is not None:  # a certificate is worth nothing after its authority's has ended
        until, signer = min(until, issuer[0].not_valid_after_utc), issuer[1]
    public, identifier = key.public_key(), x509.AuthorityKeyIdentifier.from_issuer_public_key
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    usage |= {"digital_signature": not authority, "key_cert_sign": authority, "crl_sign": authority}
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer[0].subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ between hosts
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(identifier(signer.public_key()), critical=False)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    if not authority:
        names = x509.SubjectAlternativeName(_host_names(hosts))
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(names, critical=False).add_extension(server, critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _private_pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_keys(folder: Path, *, hosts: Sequence[str], agents: Sequence[str]) -> None:
    """Make all that a federation needs, in `folder`:

    ca.crt, ca.key          the authority; every party gets ca.crt, nobody gets ca.key
    server.pem, server.key  for the cloud's host, valid for the names in `hosts`
    NAME, NAME.pub          a pair per agent; NAME goes to that agent alone, NAME.pub is registered
    """
    if len(set(agents)) != len(agents) or not agents:
        raise ValueError(f"agents must have different names, got {list(agents)}")
    if not _host_names(hosts):  # checked before anything is written
        raise ValueError("hosts must name the cloud's host, as agents reach it")
    make_folder(folder)
    authority_key, server_key = _new_key(), _new_key()
    authority = _certificate(AUTHORITY, authority_key)
    issuer = x509.load_pem_x509_certificate(authority), authority_key
    _write(folder / "ca.key", _private_pem(authority_key), mode=atomic_files.OWNER_ONLY)
    _write(folder / "ca.crt", authority)
    _write(folder / "server.key", _private_pem(server_key), mode=atomic_files.OWNER_ONLY)
    _write(folder / "server.pem", _certificate(hosts[0], server_key, issuer, hosts))
    for name in agents:
        write_agent_key(folder / name)


def write_agent_key(path: Path) -> None:
    """Write one pair for node authentication: `path` and `path`.pub, both in OpenSSH's format."""
    key = _new_key()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(path, secret, mode=atomic_files.OWNER_ONLY)
    _write(path.with_name(f"{path.name}.pub"), public + b"\n")


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
                held = self._read(file)
                since, until = held.not_valid_before_utc, held.not_valid_after_utc
                entries.append(KeyEntry(path.stem, what, since, until))
        for public in self._public_keys():
            since = datetime.fromtimestamp(public.stat().st_mtime, UTC)
            entries.append(KeyEntry(public.stem, "agent", since))
        return entries

    def _read(self, file: str) -> x509.Certificate:
        """A certificate; a ValueError names a file that was damaged since `keys make`."""
        path = self.folder / file
        try:
            return x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is no certificate: {error}") from error

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
        path = self.folder / "ca.crt"
        atomic_files.write_whole(path, _certificate(AUTHORITY, self._authority_key()))
        return path

    def renew_server(self) -> Path:
        """Another key and certificate for the same hosts, under the same authority."""
        issuer = self._read("ca.crt"), self._authority_key()
        path, key = self.folder / "server.pem", _new_key()
        extensions = self._read("server.pem").extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(name.value) for name in names]
        certificate = _certificate(hosts[0], key, issuer, hosts)
        # Interrupted between the two, key and certificate do not match; renewing again mends it.
        secret = self.folder / "server.key"
        atomic_files.write_whole(secret, _private_pem(key), mode=atomic_files.OWNER_ONLY)
        atomic_files.write_whole(path, certificate)
        return path


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
