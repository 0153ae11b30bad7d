"""Downloads from a server of this machine that has every kind of trouble."""

import hashlib
import http.server
import socket
import threading
import time

import filelock
import pytest

from fedjax_ssl.data.reading.download import FetchFailed, fetch, recorded_sha256

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()
CUT = 5000


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path; `server.asked` counts the requests of each."""

    def do_GET(self):
        count = self.server.asked[self.path] = self.server.asked.get(self.path, 0) + 1
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/down" or (self.path == "/busy" and count < 3):
            self.send_error(503)
        elif self.path == "/silent":
            self.server.ended.wait(10)
        elif self.path == "/range" and (asked := self.headers.get("Range")):
            self.server.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start:])
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            cut = self.path == "/cut" or (self.path in ("/cut-once", "/range") and count == 1)
            self.wfile.write(CONTENT[:CUT] if cut else CONTENT)

    def log_message(self, *arguments):
        del arguments


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = {}
    server.ranges = []
    server.ended = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


def left_in(folder):
    return sorted(file.name for file in folder.iterdir() if file.name != ".lock")


def failure(urls, dest, **options):
    """The reason for each address."""
    with pytest.raises(FetchFailed) as caught:
        fetch(urls, dest, wait=0.01, **options)
    return [reason for _, reason in caught.value.tried]


@pytest.mark.parametrize("path", ["/good", "/busy", "/cut-once"])
def test_a_file_comes_whole_in_spite_of_passing_trouble(server, tmp_path, path):
    dest = tmp_path / "new" / "folder" / "data.gz"
    assert fetch([f"{server.address}{path}"], dest, sha256=DIGEST, wait=0.01) == dest
    assert dest.read_bytes() == CONTENT and left_in(dest.parent) == ["data.gz"]
    fetch([f"{server.address}/down"], dest, sha256=DIGEST)  # which is not asked
    assert set(server.asked) == {path}


def test_an_unknown_digest_is_noted_and_nothing_is_resumed(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"old")
    dest = fetch([f"{server.address}/range"], tmp_path / "data.bin", wait=0.01)
    assert (recorded_sha256(dest), server.ranges) == (DIGEST, [])
    assert recorded_sha256(tmp_path / "other.bin") is None
    assert left_in(tmp_path) == ["data.bin", "data.bin.sha256"]


@pytest.mark.parametrize(
    ("path", "options", "reason", "requests"),
    [
        ("/missing", {}, "HTTP 404 Not Found", 1),
        ("/down", {}, "HTTP 503 Service Unavailable (3 tries)", 3),
        ("/cut", {}, "5000 bytes read, 5240 more expected", 3),
        ("/good", {"sha256": "0" * 64}, DIGEST, 1),
        ("/silent", {"timeout": 0.1}, "no answer within 0.1 s (3 tries)", 3),
    ],
)
def test_failures_say_why_and_leave_nothing(server, tmp_path, path, options, reason, requests):
    (said,) = failure([f"{server.address}{path}"], tmp_path / "data.bin", **options)
    assert reason in said
    assert server.asked[path] == requests and left_in(tmp_path) == []


def test_mirrors_are_tried_in_turn(server, tmp_path):
    dest = tmp_path / "data.bin"
    bad = [f"{server.address}/missing", f"{server.address}/down"]
    assert [reason[:8] for reason in failure(bad, dest)] == ["HTTP 404", "HTTP 503"]
    assert fetch([bad[0], f"{server.address}/good"], dest, sha256=DIGEST).read_bytes() == CONTENT


def test_addresses_that_nobody_answers(tmp_path, monkeypatch):
    asked = []

    def resolve(host, *arguments, **options):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (reason,) = failure(
            [f"http://127.0.0.1:{unused.getsockname()[1]}/x"], tmp_path / "data.bin"
        )
    assert "Connection refused" in reason
    assert "gopher-like" in failure(["gopher-like://host/x"], tmp_path / "data.bin")[0]
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert failure(["http://no-such-host.invalid/x"], tmp_path / "data.bin") == [
        "Name or service not known"
    ]
    assert asked == ["no-such-host.invalid"]


def test_an_older_file_survives_a_failed_download(server, tmp_path):
    dest = tmp_path / "data.bin"
    dest.write_text("older")
    failure([f"{server.address}/cut"], dest, sha256=DIGEST)
    assert dest.read_text() == "older"


@pytest.mark.parametrize(
    ("left", "path", "requests"),
    [
        (CONTENT[:CUT], "/range", 1),
        (CONTENT, "/range", 0),  # whole, but was not renamed
        (b"other" * 20, "/range", 2),  # of another file
        (CONTENT + b"more", "/range", 2),
        (CONTENT[:77], "/good", 1),  # a server that sends the whole file again
    ],
)
def test_a_download_goes_on_where_an_earlier_process_was(server, tmp_path, left, path, requests):
    server.asked["/range"] = 1  # its first answer would be cut short
    (tmp_path / "data.bin.part").write_bytes(left)
    dest = fetch([f"{server.address}{path}"], tmp_path / "data.bin", sha256=DIGEST, wait=0.01)
    assert dest.read_bytes() == CONTENT and left_in(tmp_path) == ["data.bin"]
    assert server.asked.get(path, 0) - (path == "/range") == requests


def test_a_full_disk_is_no_fault_of_the_network_and_gets_its_space_back(server, tmp_path):
    (tmp_path / "data.bin.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        fetch([f"{server.address}/good"], tmp_path / "data.bin", sha256=DIGEST)
    assert server.asked == {"/good": 1} and left_in(tmp_path) == []


def test_two_at_once_fetch_once(server, tmp_path, caplog):
    dest = tmp_path / "data.bin"
    with filelock.FileLock(tmp_path / ".lock"):
        other = threading.Thread(
            target=fetch, args=([f"{server.address}/good"], dest), kwargs={"sha256": DIGEST}
        )
        other.start()
        while "waiting for it" not in caplog.text:
            time.sleep(0.005)
        dest.write_bytes(CONTENT)  # as if this process had fetched it
    other.join()
    assert server.asked == {} and left_in(tmp_path) == ["data.bin"]
