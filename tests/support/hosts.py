"""A federation whose hosts are network namespaces: the cloud in ours, every agent in its own.

The test process must itself be in a namespace of its own (`make test-hosts` sees to that), so that
nothing of the machine's network is touched and all links are gone when it ends.
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

from isfed.flower.local_processes import LocalFederation

CLOUD = "192.0.2.1"  # addresses that are reserved for documents and examples

LOSSY = """
table inet lossy {
    chain input {
        type filter hook input priority filter; policy accept;
        iifname "lo" accept
        numgen random mod 5 == 0 drop
    }
}
"""


def run(*command: str, text: str | None = None) -> None:
    subprocess.run(command, check=True, input=text, text=True, capture_output=True)


def in_own_namespace() -> bool:
    """Whether the only link here is loopback, as in a namespace that was just made."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


class HostsFederation(LocalFederation):
    """One bridge, the cloud's address on it, and a namespace with an address for every agent."""

    def __init__(self, folder: Path, *, agents: int) -> None:
        super().__init__(folder, agents=agents, address=CLOUD)
        self.hosts: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> HostsFederation:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "address", "add", f"{CLOUD}/24", "dev", "switch")
        run("ip", "link", "set", "switch", "up")
        for index, name in enumerate(self.names):
            self.hosts[name] = host = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            own = Path(f"/proc/{host.pid}/ns/net")
            while own.readlink() == Path("/proc/self/ns/net").readlink():
                time.sleep(0.01)
            run("ip", "link", "add", name, "type", "veth",
                "peer", "name", "uplink", "netns", str(host.pid))  # fmt: skip
            run("ip", "link", "set", name, "master", "switch", "up")
            self.there(name, "ip", "address", "add", f"192.0.2.{10 + index}/24", "dev", "uplink")
            for link in ("lo", "uplink"):
                self.there(name, "ip", "link", "set", link, "up")
        super().__enter__()
        return self

    def __exit__(self, *_) -> None:
        super().__exit__()
        for host in self.hosts.values():
            host.kill()
            host.wait()

    def on_host(self, name: str) -> list[str]:
        if name not in self.hosts:
            return []
        return ["nsenter", "--target", str(self.hosts[name].pid), "--net"]

    def there(self, name: str, *command: str, text: str | None = None) -> None:
        """Run a command on an agent's host."""
        run(*self.on_host(name), *command, text=text)

    def cut(self, name: str, *, off: bool) -> None:
        """Pull an agent's cable out, or plug it in again."""
        run("ip", "link", "set", name, "down" if off else "up")
