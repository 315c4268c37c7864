"""`isfed federation`: mistakes in one line, and keys that only their owner can read."""

# pyright: reportMissingImports=false
import ssl

import pytest
from cryptography import x509
from typer.testing import CliRunner

from isfed.cli.federation import app
from isfed.flower.keys import make_keys

run = CliRunner().invoke


def test_without_flower_every_command_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for arguments in (["demo"], ["keys", str(tmp_path), "--host", "h", "--agents", "1"]):
        result = run(app, arguments)
        assert result.exit_code == 1
        assert result.stderr == "error: Flower is not installed: pip install 'isfed[flower]'\n"


def test_more_active_agents_than_agents(tmp_path):
    result = run(app, ["demo", "--agents", "2", "--active", "3"])
    assert result.exit_code == 1
    assert "--active 3 exceeds --agents 2" in result.stderr


def test_keys_are_private_and_never_overwritten(tmp_path):
    folder = tmp_path / "keys"
    arguments = ["keys", str(folder), "--host", "cloud.example", "--host", "10.0.0.5"]
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
    result = run(app, ["keys", str(tmp_path / "k"), "--host", host, "--agents", "1"])
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
