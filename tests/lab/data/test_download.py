"""Downloads against a server of our own: resumed, checked, unpacked whole, and clear when they fail."""

import gzip
import hashlib
import io
import os
import random
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from zosam.lab.data import DataError, download
from zosam.lab.data.download import SOURCES, Source, fetch, get


class Server(BaseHTTPRequestHandler):
    """Serves `content` with byte ranges; `cut` ends the answer early, `status` refuses, `ranges` can be off."""

    content, cut, status, ranges = b"", None, None, True
    asked = ()

    def do_GET(self):
        wanted = self.headers.get("Range", "bytes=0-")
        Server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if Server.ranges else 0
        if Server.status:
            self.send_error(Server.status)
            return
        if start >= len(Server.content):
            self.send_error(416)
            return
        body = Server.content[start:]
        self.send_response(206 if Server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        if Server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(Server.content) - 1}/{len(Server.content)}")
        self.end_headers()
        self.wfile.write(body[: Server.cut])

    def log_message(self, *args):
        pass


def archive(files, links=()):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return stream.getvalue()


FILES = {"set/a": b"first", "set/deep/b": random.Random(0).randbytes(300_000)}


@pytest.fixture
def serve():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()

    def start(content, **settings):
        Server.content, Server.asked = content, []
        for key, default in (("cut", None), ("status", None), ("ranges", True)):
            setattr(Server, key, settings.get(key, default))
        url = f"http://127.0.0.1:{server.server_port}/set.tar.gz"
        return Source(url, "set.tar.gz", hashlib.md5(content).hexdigest(), "set")

    yield start
    server.shutdown()
    server.server_close()
    thread.join()


def test_downloads_and_unpacks(serve, tmp_path):
    source = serve(archive(FILES))
    folder = fetch(source, tmp_path / "new")
    assert folder == tmp_path / "new" / "set"
    assert {str(p.relative_to(folder.parent)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == FILES
    assert os.listdir(tmp_path / "new") == ["set"]  # no archive, no part, no folder aside
    fetch(source, tmp_path / "new")
    assert len(Server.asked) == 1  # what is there is not fetched again


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_broke_off_goes_on(serve, tmp_path, ranges):
    source = serve(archive(FILES), cut=100_000, ranges=ranges)
    with pytest.raises(
        DataError, match=r"broke off after 100,000 of 300,\d+ bytes: run again to go on, or put set.tar.gz"
    ):
        fetch(source, tmp_path)
    assert os.listdir(tmp_path) == ["set.tar.gz.part"]
    Server.cut = None
    assert (fetch(source, tmp_path) / "a").read_bytes() == b"first"
    assert Server.asked == ["bytes=0-", "bytes=100000-"]


def test_a_part_that_is_already_whole(serve, tmp_path):
    source = serve(archive(FILES))
    (tmp_path / "set.tar.gz.part").write_bytes(Server.content)
    assert (fetch(source, tmp_path) / "a").read_bytes() == b"first"


def test_an_archive_put_there_by_hand(serve, tmp_path):
    source = serve(archive(FILES), status=500)
    (tmp_path / "set.tar.gz").write_bytes(Server.content)
    assert (fetch(source, tmp_path) / "a").read_bytes() == b"first"
    assert Server.asked == []


@pytest.mark.parametrize("stale", [b"", b"left by another file"])
def test_a_wrong_checksum(serve, tmp_path, stale):
    source = serve(archive(FILES))
    (tmp_path / "set.tar.gz.part").write_bytes(stale)
    if not stale:
        Server.content = Server.content[:-1] + b"!"
    with pytest.raises(
        DataError, match=rf"{tmp_path / 'set.tar.gz'} is not the published file \(MD5 .* and was removed"
    ):
        fetch(source, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("status", [403, 404, 503])
def test_the_server_refuses(serve, tmp_path, status):
    source = serve(archive(FILES), status=status)
    with pytest.raises(DataError, match=rf"answers {status} .*: try later, or put set.tar.gz from http"):
        fetch(source, tmp_path)
    assert os.listdir(tmp_path) == []


def test_unreachable(tmp_path):
    source = Source("http://127.0.0.1:9/set.tar.gz", "set.tar.gz", "0" * 32, "set")
    with pytest.raises(DataError, match=r"cannot be reached \(.*refused.*\): run again .* by hand"):
        fetch(source, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        archive({"../outside": b"x"}),
        archive({"set/../../outside": b"x"}),
        archive({"/tmp/zosam-outside": b"x"}),
        archive(FILES, links=[("set/link", "/etc/passwd")]),
    ],
    ids=["above", "inside out", "absolute", "link"],
)
def test_nothing_leaves_the_folder(serve, tmp_path, content):
    inside = tmp_path / "deep" / "er"
    with pytest.raises(DataError, match="not a plain file inside it"):
        fetch(serve(content), inside)
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == ["er"]
    assert os.listdir(inside) == ["set.tar.gz"]
    assert not os.path.exists("/tmp/zosam-outside")


def claiming(size, kind=tarfile.REGTYPE):
    """An archive of one member that claims to be larger than it is."""
    member = tarfile.TarInfo("set/a")
    member.size, member.type = size, kind
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))


@pytest.mark.parametrize(
    "content",
    [claiming(1 << 40), archive({"set/a": bytes(10 << 20)}), archive({f"set/{n}": bytes(1 << 20) for n in range(10)})],
    ids=["claimed", "one", "many"],
)
def test_more_than_can_be_in_it(serve, tmp_path, content):
    with pytest.raises(DataError, match=r"claims to hold more than can be in it|cannot be unpacked"):
        fetch(serve(content), tmp_path)
    assert os.listdir(tmp_path) == ["set.tar.gz"]


def test_a_file_with_holes(serve, tmp_path):
    with pytest.raises(DataError, match=r"not a plain file inside it|cannot be unpacked"):
        fetch(serve(claiming(1 << 40, tarfile.GNUTYPE_SPARSE)), tmp_path)
    assert os.listdir(tmp_path) == ["set.tar.gz"]


@pytest.mark.parametrize(
    "content", [b"not an archive", archive(FILES)[:200_000], archive({"other/a": b"x"})], ids=["text", "cut", "other"]
)
def test_an_archive_that_cannot_be_used(serve, tmp_path, content):
    with pytest.raises(
        DataError, match=r"set.tar.gz (cannot be unpacked|holds no folder 'set').*remove it and run again"
    ):
        fetch(serve(content), tmp_path)
    assert os.listdir(tmp_path) == ["set.tar.gz"]  # no half of it under the final name


def test_a_folder_that_cannot_be_written(serve, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="file"):
        fetch(serve(archive(FILES)), tmp_path / "file" / "data")


def test_official_addresses(tmp_path, monkeypatch):
    assert sorted(SOURCES) == ["cifar10", "cifar10-c", "cifar100"]
    with pytest.raises(ValueError, match="did you mean 'cifar10-c'"):
        get("cifar10c", tmp_path)
    monkeypatch.setattr(download, "fetch", lambda source, folder: (source.archive, folder))
    assert get("cifar100", tmp_path) == ("cifar-100-python.tar.gz", tmp_path)
