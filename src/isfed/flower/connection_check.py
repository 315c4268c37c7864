"""`isfed federation check`: what keeps an agent's host from reaching the cloud, in one sentence.

Flower's SuperLink refuses a node whose clock is 5 seconds ahead or 305 seconds behind, and calls it
offline; on the node's side nothing says why. Every answer of the SuperLink, and of a proxy before
it, has the time in its header.
"""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 305.0  # where Flower locks a node out
SECONDS = 10.0  # to wait for an answer
NEAR = 0.4  # of the limit: worth a warning


@dataclass(frozen=True)
class ConnectionStatus:
    """How the cloud looks from here."""

    ahead: float  # seconds by which our clock is ahead of the cloud's; negative if it is behind
    days_left: int | None  # of its certificate; None without TLS

    def problem(self) -> str | None:
        """Why a node here is locked out, or will be soon."""
        if -NEAR * BEHIND_SECONDS <= self.ahead <= NEAR * AHEAD_SECONDS:
            return None
        out = not -BEHIND_SECONDS < self.ahead < AHEAD_SECONDS
        return (
            f"this clock is {abs(self.ahead):.0f} s {'ahead of' if self.ahead > 0 else 'behind'} "
            f"the cloud's: Flower {'locks out' if out else 'will soon lock out'} this node (at "
            f"{AHEAD_SECONDS:.0f} s ahead or {BEHIND_SECONDS:.0f} s behind); set the clock, for "
            "example: timedatectl set-ntp true"
        )


def connection_status(address: str, *, authority: Path | None) -> ConnectionStatus:
    """Ask the cloud at HOST:PORT for the time; a ValueError says what went wrong."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{address!r} must be HOST:PORT, as for --superlink")
    host = host.strip("[]")
    if authority is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{authority} is no certificate: {error}") from error
        connection = http.client.HTTPSConnection(host, int(port), timeout=SECONDS, context=context)
    try:
        began = time.time()
        connection.request("HEAD", "/")
        certificate = None
        if isinstance(connection.sock, ssl.SSLSocket):
            certificate = connection.sock.getpeercert()
        date = connection.getresponse().headers.get("Date")
        here = (began + time.time()) / 2
    except ssl.SSLCertVerificationError as error:
        raise ValueError(
            f"{address} cannot be trusted: {error.verify_message}. A clock that is far off makes a "
            "certificate look ended or not yet begun; here it is "
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{address} cannot be reached: {error}") from error
    finally:
        connection.close()
    if date is None:
        raise ValueError(f"{address} does not say what time it is: is it a SuperLink?")
    there = parsedate_to_datetime(date).timestamp() + 0.5  # whole seconds, cut
    if certificate is None:
        return ConnectionStatus(here - there, None)
    left = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
    return ConnectionStatus(here - there, int(left // 86400))
