"""Keys that only their owner can read, and that can be added, renewed and revoked."""

# pyright: reportMissingImports=false
import datetime
import ssl

import pytest
from cryptography import x509
from typer.testing import CliRunner

from isfed.cli.federation import app
from isfed.flower.certificates import KeyEntry, make_keys

run = CliRunner().invoke


def test_the_clouds_own_processes_can_trust_its_certificate(tmp_path):
    arguments = ["keys", "make", str(tmp_path / "k"), "--host", "cloud.example", "--agents", "1"]
    assert run(app, arguments).exit_code == 0
    for host in ("cloud.example", "localhost", "127.0.0.1"):  # as docs/deploy.md has it
        handshake(tmp_path / "k", host)


def test_keys_are_private_and_never_overwritten(tmp_path):
    folder = tmp_path / "keys"
    arguments = ["keys", "make", str(folder), "--host", "cloud.example", "--host", "10.0.0.5"]
    assert run(app, [*arguments, "--agents", "2"]).exit_code == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "ca.key",
        "server.key",
        "agent0",
        "agent1",
    }
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = run(app, [*arguments, "--agents", "3"])
    assert again.exit_code == 1
    assert "exists and is not overwritten" in again.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("host", ["https://cloud", "cloud:8000", "", "a b"])
def test_a_host_is_a_name_or_an_address(tmp_path, host):
    result = run(app, ["keys", "make", str(tmp_path / "k"), "--host", host, "--agents", "1"])
    assert result.exit_code == 1
    assert "must be a name or an address" in result.stderr


def handshake(folder, host: str) -> None:
    """TLS between a server and a client in memory; the client trusts ca.crt and expects `host`."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "server.pem", folder / "server.key")
    client_context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(back, there, server_hostname=host)
    server = server_context.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() is not None


def test_the_certificate_is_good_for_its_hosts_and_no_others(tmp_path):
    make_keys(tmp_path / "k", hosts=["cloud.example", "127.0.0.1"], agents=["a"])
    handshake(tmp_path / "k", "cloud.example")
    handshake(tmp_path / "k", "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "k", "other.example")
    make_keys(tmp_path / "other", hosts=["cloud.example"], agents=["a"])
    (tmp_path / "other" / "ca.crt").write_bytes((tmp_path / "k" / "ca.crt").read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "other", "cloud.example")
    server = x509.load_pem_x509_certificate((tmp_path / "k" / "server.pem").read_bytes())
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.fixture
def ring(tmp_path):
    make_keys(tmp_path / "keys", hosts=["cloud.example", "127.0.0.1"], agents=["agent0", "agent1"])
    return tmp_path / "keys"


def command(ring, *arguments):
    result = run(app, ["keys", *arguments, "--folder", str(ring)])
    assert result.exit_code == 0, result.output
    return result.output


def test_an_agent_is_added_under_the_same_authority(ring):
    before = {path.name: path.read_bytes() for path in ring.iterdir()}
    said = command(ring, "add", "hospital-7")
    assert f"flwr supernode register {ring / 'hospital-7.pub'} CONNECTION --name hospital-7" in said
    assert (ring / "hospital-7").stat().st_mode & 0o777 == 0o600
    after = {path.name: path.read_bytes() for path in ring.iterdir()}
    assert {name: after[name] for name in before} == before
    assert sorted(after.keys() - before.keys()) == ["hospital-7", "hospital-7.pub"]


@pytest.mark.parametrize("name", ["../x", "a b", "", "ca", "server", "agent0.pub", "x" * 65, "-x"])
def test_a_name_that_is_none_is_refused(ring, name):
    result = run(app, ["keys", "add", "--folder", str(ring), "--", name])
    assert result.exit_code == 1
    assert "cannot be an agent's name" in result.stderr


def test_an_agent_is_revoked_and_its_secret_gone(ring):
    secret, public = (ring / "agent0").read_bytes(), (ring / "agent0.pub").read_bytes()
    said = command(ring, "revoke", "agent0")
    assert "until you unregister it at the SuperLink" in said
    left = [path for path in ring.rglob("*") if path.is_file()]
    assert secret not in [path.read_bytes() for path in left]
    assert [path.read_bytes() for path in (ring / "revoked").iterdir()] == [public]
    again = run(app, ["keys", "revoke", "agent0", "--folder", str(ring)])
    assert again.exit_code == 1
    assert "there is no agent 'agent0'" in again.stderr
    assert "there are: agent1" in again.stderr


def test_an_agents_key_is_renewed(ring):
    old = (ring / "agent0").read_bytes()
    command(ring, "renew", "agent0")
    assert (ring / "agent0").read_bytes() != old
    assert len(list((ring / "revoked").iterdir())) == 1


def test_the_clouds_certificate_is_renewed_for_the_same_hosts(ring):
    old = (ring / "server.pem").read_bytes(), (ring / "server.key").read_bytes()
    command(ring, "renew", "server")
    assert ((ring / "server.pem").read_bytes(), (ring / "server.key").read_bytes()) != old
    assert (ring / "server.key").stat().st_mode & 0o777 == 0o600
    handshake(ring, "cloud.example")
    handshake(ring, "127.0.0.1")


def test_the_authority_is_renewed_and_what_it_signed_stays_valid(ring):
    old = (ring / "ca.crt").read_bytes()
    command(ring, "renew", "ca")
    assert (ring / "ca.crt").read_bytes() != old
    handshake(ring, "cloud.example")


def test_renewing_needs_the_authoritys_key(ring):
    (ring / "ca.key").unlink()
    result = run(app, ["keys", "renew", "server", "--folder", str(ring)])
    assert result.exit_code == 1
    assert "holds no ca.key" in result.stderr


def test_the_list_says_how_many_days_are_left(ring, monkeypatch):
    lines = command(ring, "list").splitlines()
    assert [line.split()[0] for line in lines] == ["ca", "server", "agent0", "agent1"]
    assert "824 days left" in lines[0]
    assert "no end" in lines[2]
    assert "renew" not in lines[1]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=800)
    left = KeyEntry.days_left
    monkeypatch.setattr(KeyEntry, "days_left", lambda self: left(self, later))
    lines = command(ring, "list").splitlines()
    assert lines[1].endswith("24 days left  renew: keys renew server")


def test_a_folder_without_keys_is_no_ring(tmp_path):
    result = run(app, ["keys", "list", "--folder", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no ca.crt" in result.stderr


@pytest.mark.parametrize("verb", ["revoke", "renew"])
def test_a_path_is_no_agent_that_could_be_revoked(ring, verb):
    outside = [ring.parent / "other", ring.parent / "other.pub"]
    for path in outside:
        path.write_text("of somebody else")
    result = run(app, ["keys", verb, "../other", "--folder", str(ring)])
    assert result.exit_code == 1
    assert "there is no agent '../other'" in result.stderr
    assert all(path.exists() for path in outside)


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("ca.crt", ["list"]),
        ("server.pem", ["list"]),
        ("server.pem", ["renew", "server"]),
        ("ca.key", ["renew", "server"]),
        ("ca.key", ["renew", "ca"]),
    ],
)
@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\n", b"\xff\x00"])
def test_a_damaged_file_is_named_and_nothing_is_written(ring, file, arguments, content):
    (ring / file).write_bytes(content)
    before = {path.name: path.read_bytes() for path in ring.iterdir()}
    result = run(app, ["keys", *arguments, "--folder", str(ring)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {ring / file} is ")
    assert {path.name: path.read_bytes() for path in ring.iterdir()} == before
