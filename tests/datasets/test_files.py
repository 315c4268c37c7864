"""Files of data sets: where they are looked for, how they are checked and fetched."""

import bz2
import functools
import hashlib
import http.server
import threading

import pytest

from isfed.datasets import dataset_files
from isfed.datasets.dataset_files import DataMissingError, File, content_of, fetch

CONTENT = b"1 1:2\n" * 50_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):  # silent
        pass


@pytest.fixture
def home(tmp_path):
    """A server on this machine, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """No test looks into the real folders."""
    monkeypatch.delenv("ISFED_DATA", raising=False)
    monkeypatch.setattr(dataset_files, "cache_folder", lambda: tmp_path / "cache")


def data_file(*urls, sha256=SHA256):
    return File("set", "rows.svm.bz2", sha256, urls or ("http://127.0.0.1:9/rows.svm.bz2",))


def put(folder, content=CONTENT):
    path = folder / "rows.svm.bz2"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bz2.compress(content))
    return path


def test_the_explicit_folder_comes_before_the_variable_before_the_cache(tmp_path, monkeypatch):
    cached = put(tmp_path / "cache" / "set")
    assert content_of(data_file()) == (cached, CONTENT)
    named = put(tmp_path / "named" / "set")
    monkeypatch.setenv("ISFED_DATA", str(tmp_path / "named"))
    assert content_of(data_file())[0] == named
    explicit = put(tmp_path / "explicit" / "set")
    assert content_of(data_file(), tmp_path / "explicit")[0] == explicit
    flat = put(tmp_path / "flat")  # a folder that is the data set's own
    assert content_of(data_file(), str(tmp_path / "flat"))[0] == flat
    (tmp_path / "empty").mkdir()
    assert content_of(data_file(), tmp_path / "empty")[0] == named


def test_an_explicit_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*typo"):
        content_of(data_file(), tmp_path / "typo")


def test_a_file_with_other_content_is_an_error(tmp_path):
    path = put(tmp_path / "cache" / "set", CONTENT[:-1])
    with pytest.raises(ValueError, match=f"not {SHA256}; remove it") as caught:
        content_of(data_file())
    assert str(path) in str(caught.value)
    assert hashlib.sha256(CONTENT[:-1]).hexdigest() in str(caught.value)


def test_the_packing_does_not_matter(tmp_path):
    path = tmp_path / "cache" / "set" / "rows.svm.bz2"
    path.parent.mkdir(parents=True)
    path.write_bytes(bz2.compress(CONTENT, 1) + bz2.compress(b""))
    assert content_of(data_file())[1] == CONTENT


def test_a_missing_file_is_fetched_into_the_cache(home, tmp_path):
    url, served = home
    put(served)
    path, content = content_of(data_file(f"{url}/rows.svm.bz2"))
    assert path == tmp_path / "cache" / "set" / "rows.svm.bz2"
    assert content == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["rows.svm.bz2"]
    put(served, b"changed").unlink()  # found now, not fetched again
    assert content_of(data_file(f"{url}/rows.svm.bz2"))[0] == path


def test_a_missing_file_is_fetched_into_the_explicit_folder(home, tmp_path):
    url, served = home
    put(served)
    (tmp_path / "mine").mkdir()
    path, _ = content_of(data_file(f"{url}/rows.svm.bz2"), tmp_path / "mine")
    assert path == tmp_path / "mine" / "set" / "rows.svm.bz2"


def test_a_second_home_is_tried(home, tmp_path):
    url, served = home
    put(served)
    path = fetch(data_file(f"{url}/gone", f"{url}/rows.svm.bz2"), tmp_path / "to")
    assert path.read_bytes() == (served / "rows.svm.bz2").read_bytes()


@pytest.mark.parametrize("content", [b"another file", CONTENT[: len(CONTENT) // 2]])
def test_what_is_fetched_is_checked_and_nothing_half_written_stays(home, tmp_path, content):
    url, served = home
    put(served, content)
    with pytest.raises(OSError, match="sha256"):
        fetch(data_file(f"{url}/rows.svm.bz2"), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_download_that_breaks_off_leaves_nothing(home, tmp_path):
    url, served = home
    path = put(served)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(OSError, match="cannot be unpacked"):
        fetch(data_file(f"{url}/rows.svm.bz2"), tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_without_a_network_the_error_says_which_file_to_put_where(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataMissingError) as caught:
        content_of(data_file(), tmp_path / "mine")
    message = str(caught.value)
    assert "Get http://127.0.0.1:9/rows.svm.bz2" in message
    assert f"put it at {tmp_path / 'mine' / 'set' / 'rows.svm.bz2'}" in message
    assert "set ISFED_DATA to the folder that has set/rows.svm.bz2" in message
    assert "Connection refused" in message
