"""Certificates and keys: an authority, the cloud's certificate, one key pair for every agent."""

# pyright: reportMissingImports=false
from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 825  # the longest that common TLS clients accept


def _write(path: Path, content: bytes, *, secret: bool) -> None:
    """Write a new file; a secret one only its owner can read, from the first byte on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(path, flags, 0o600 if secret else 0o644)
    except FileExistsError:
        raise ValueError(
            f"{path} exists and is not overwritten: a federation may be using it; "
            "choose another folder or remove it yourself"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def make_folder(path: Path) -> None:
    """A folder that only its owner can enter."""
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


def make_key() -> ec.EllipticCurvePrivateKey:
    """A secret key; SuperLink and SuperNode accept elliptic curves."""
    return ec.generate_private_key(ec.SECP384R1())


def make_certificate(subject: str, key: Any, issuer: Any = None, hosts: Sequence[str] = ()) -> Any:
    """A certificate for `key`, signed by the issuer (certificate, key), or by itself if none."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.datetime.now(datetime.UTC)
    until, signer, authority = now + datetime.timedelta(days=VALID_DAYS), key, issuer is None
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
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ between hosts
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
    return builder.sign(signer, hashes.SHA256())


def private_pem(key: Any) -> bytes:
    """A secret key as it is written."""
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
    authority_key, server_key = make_key(), make_key()
    authority = make_certificate("isfed federation", authority_key)
    server = make_certificate(hosts[0], server_key, (authority, authority_key), hosts)
    _write(folder / "ca.key", private_pem(authority_key), secret=True)
    _write(folder / "ca.crt", authority.public_bytes(Encoding.PEM), secret=False)
    _write(folder / "server.key", private_pem(server_key), secret=True)
    _write(folder / "server.pem", server.public_bytes(Encoding.PEM), secret=False)
    for name in agents:
        write_agent_key(folder / name)


def write_agent_key(path: Path) -> None:
    """One pair for node authentication: `path`, and `path`.pub, both in OpenSSH's format."""
    key = make_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(
        path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), secret=True
    )
    _write(path.with_name(f"{path.name}.pub"), public + b"\n", secret=False)
