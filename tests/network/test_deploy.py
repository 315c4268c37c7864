"""The texts of docs/deploy.md that are not Python: run, where what they are for is installed."""

import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from isfed.flower.demo import in_process
from isfed.flower.local_processes import HOST, LocalFederation, free_port

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
BINARIES = Path(sys.executable).parent


def block(containing: str) -> str:
    """The one block of the page that contains a text."""
    found = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    (text,) = [each for each in found if containing in each]
    return text


def needs(program: str):
    """Skip where Debian's package is not installed."""
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["cloud", "agent"])
def test_systemd_finds_nothing_wrong_with_the_units(name, tmp_path):
    program = {"cloud": "flower-superlink", "agent": "flower-supernode"}[name]
    text = block(f"/opt/isfed/bin/{program}")
    path = tmp_path / f"isfed-{name}.service"
    path.write_text(text.replace("/opt/isfed/bin", str(BINARIES)))
    done = run("systemd-analyze", "verify", str(path), folder=tmp_path)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]
    assert ours == [], ours
    path.write_text(text.replace("Restart=always", "Restart=sometimes"))
    done = run("systemd-analyze", "verify", str(path), folder=tmp_path)
    assert "sometimes" in done.stdout + done.stderr  # it does look at what it is given


@needs("nginx")
def test_agents_work_through_the_proxy_and_operators_do_not(make_job_on, tmp_path):
    """Three agents behind nginx as the page has it; the control paths are closed there."""
    with LocalFederation(tmp_path / "proxied", agents=3) as proxied:
        job = make_job_on(proxied, rounds=2, active=2)
        proxied.gate = free_port()
        server = block("location /v1/fleet/")
        for there, here in {
            "listen 8443": f"listen {HOST}:{proxied.gate}",
            "https://127.0.0.1:8000": f"https://{HOST}:{proxied.port}",
            "/etc/isfed/": f"{proxied.keys}/",
            "cloud.example": "localhost",
        }.items():
            assert there in server
            server = server.replace(there, here)
        temporary = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = tmp_path / "nginx.conf"
        config.write_text(
            f"daemon off; user root; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;"
            f"events {{}} http {{ access_log {tmp_path}/access.log; {temporary}\n{server}\n}}"
        )
        proxied.start_link()
        proxied.spawn("nginx", ["nginx", "-c", str(config), "-e", str(tmp_path / "error.log")])
        proxied.register()
        for agent in range(3):
            proxied.start_node(agent)
        job.submit()
        lines = job.finish()
        assert [line["params"] for line in lines] == in_process(job.config).tolist()
        seen = (tmp_path / "access.log").read_text()
        assert seen.count("/v1/fleet/") > 3
        trust = ssl.create_default_context(cafile=str(proxied.keys / "ca.crt"))
        for path in ("/v1/control/list-runs", "/v1/runtime/x", "/", "/v1/fleet/../control/x"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(
                    f"https://localhost:{proxied.gate}{path}", data=b"{}", context=trust
                )
            assert refused.value.code == 403, path


# Two hosts that are network namespaces: the cloud's, with the rules, and another with two
# addresses, of which the rules know one. Nothing is waited for by the clock: the namespace, its
# addresses and the servers are looked for until they are there. What the rules drop never answers,
# so that the seconds before it is given up decide nothing on a busy machine.
HOSTS = """
set -e
ip link set lo up
unshare --net sleep 600 & agents=$!
trap 'kill $agents $servers' EXIT
until [ "$(readlink /proc/$agents/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link add cloud type veth peer name agents netns $agents
ip address add 192.0.2.1/24 dev cloud
ip link set cloud up
there="nsenter --target $agents --net"
$there ip address add 192.0.2.10/24 dev agents
$there ip address add 192.0.2.99/24 dev agents
$there ip link set agents up
nft -f rules
python3 -m http.server 8443 > /dev/null 2>&1 & servers=$!
python3 -m http.server 8000 > /dev/null 2>&1 & servers="$servers $!"
for port in 8443 8000; do
    until (exec 3<> /dev/tcp/127.0.0.1/$port) 2> /dev/null; do sleep 0.1; done
done
for source in 192.0.2.10 192.0.2.99; do for port in 8443 8000; do
    $there python3 -c "
import socket
try:
    socket.create_connection(('192.0.2.1', $port), 8.0, ('$source', 0))
    print('$source', $port, 'open')
except TimeoutError:
    print('$source', $port, 'dropped')"
done; done
python3 -c "
import socket
socket.create_connection(('127.0.0.1', 8000), 60.0)
print('own host', 8000, 'open')"
"""


@needs("nft")
@needs("unshare")
def test_the_packet_filter_lets_agents_in_and_nobody_else(tmp_path):
    if run("unshare", "--net", "true", folder=tmp_path).returncode:
        pytest.skip("network namespaces cannot be made here")
    (tmp_path / "rules").write_text(block("table inet isfed"))
    done = run("unshare", "--net", "bash", "-c", HOSTS, folder=tmp_path)
    assert done.stdout.splitlines() == [
        "192.0.2.10 8443 open",
        "192.0.2.10 8000 dropped",
        "192.0.2.99 8443 dropped",
        "192.0.2.99 8000 dropped",
        "own host 8000 open",
    ], done.stderr
