"""The folder of keys over the years: agents come and go, certificates end and are renewed."""

# pyright: reportMissingImports=false
from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isfed.base import atomic_files
from isfed.flower.keys import (
    make_certificate,
    make_folder,
    private_pem,
    public_pem,
    write_agent_key,
)

SOON_DAYS = 60  # a certificate that ends sooner is to be renewed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
RESERVED = {"ca", "server", "revoked"}


@dataclass(frozen=True)
class Held:
    """One line of the list: what there is, and until when it is valid (None: it has no end)."""

    name: str
    what: str
    since: datetime.datetime
    until: datetime.datetime | None = None

    def days_left(self, now: datetime.datetime | None = None) -> int | None:
        """Whole days; negative when it has ended."""
        now = now or datetime.datetime.now(datetime.UTC)
        return None if self.until is None else (self.until - now).days


class KeyRing:
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
            known = ", ".join(held.name for held in self.agents()) or "none"
            raise ValueError(f"there is no agent {name!r} in {self.folder}; there are: {known}")
        old = self.folder / "revoked"
        make_folder(old)
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S%f")
        kept = public.rename(old / f"{name}-{stamp}.pub")
        (self.folder / name).unlink(missing_ok=True)
        return kept

    def agents(self) -> list[Held]:
        """The agents that have keys, by name."""
        found = []
        for public in sorted(self.folder.glob("*.pub")):
            since = datetime.datetime.fromtimestamp(public.stat().st_mtime, datetime.UTC)
            found.append(Held(public.stem, "agent", since))
        return found

    def list(self) -> list[Held]:
        """Everything: certificates, then agents."""
        found = []
        for name, file, what in (
            ("ca", "ca.crt", "authority"),
            ("server", "server.pem", "the cloud's"),
        ):
            if (self.folder / file).exists():
                held = _certificate(self.folder / file)
                since, until = held.not_valid_before_utc, held.not_valid_after_utc
                found.append(Held(name, what, since, until))
        return found + self.agents()

    def _authority(self) -> tuple[Any, Any]:
        """The certificate and the key that sign."""
        from cryptography.hazmat.primitives import serialization

        if not (self.folder / "ca.key").exists():
            raise ValueError(
                f"{self.folder} holds no ca.key, which signs: run this where it is kept"
            )
        path = self.folder / "ca.key"
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError) as error:  # a type error if it has a password
            raise ValueError(f"{path} is not the key that `keys make` wrote: {error}") from error
        return _certificate(self.folder / "ca.crt"), key

    def renew_authority(self) -> Path:
        """The same key for another while: what it has signed stays valid."""
        _, key = self._authority()
        certificate = make_certificate("isfed federation", key)
        atomic_files.write_whole(self.folder / "ca.crt", public_pem(certificate))
        return self.folder / "ca.crt"

    def renew_server(self) -> Path:
        """Another key and certificate for the same hosts, under the same authority."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        authority = self._authority()
        path = self.folder / "server.pem"
        old = _certificate(path)
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(name.value) for name in names]
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = make_certificate(hosts[0], key, authority, hosts)
        # Cut off between the two, they do not match: renewing once more mends it.
        atomic_files.write_whole(
            self.folder / "server.key", private_pem(key), mode=atomic_files.OWNER_ONLY
        )
        atomic_files.write_whole(path, public_pem(certificate))
        return path


def _certificate(path: Path) -> Any:
    """What a file of `keys make` holds; a ValueError names one that was damaged since."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no certificate: {error}") from error
