import hashlib
import http.server
import socket
import threading
import time

import pytest

from fedjax_ssl.data.sources.fetch import FetchFailed, _one_process, fetch, recorded_sha256

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """What it answers depends on the path; `server.asked` counts the requests of each."""

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
            if self.path == "/encoded":
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            cut = self.path == "/cut" or (self.path in ("/cut-once", "/range") and count == 1)
            self.wfile.write(CONTENT[:5000] if cut else CONTENT)

    def log_message(self, *arguments):
        del arguments


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.ranges, server.ended = {}, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


def failure(url, dest, **options):
    """The reason for each address; checks that nothing is left of the download."""
    with pytest.raises(FetchFailed) as caught:
        fetch(url, dest, wait=0.01, **options)
    assert list(dest.parent.iterdir()) == []
    return [reason for _, reason in caught.value.tried]


def test_known_digest_and_size(server, tmp_path):
    dest = tmp_path / "new" / "folder" / "data.bin"
    assert fetch(f"{server.address}/good", dest, sha256=DIGEST, size=len(CONTENT)) == dest
    assert dest.read_bytes() == CONTENT
    assert [file.name for file in dest.parent.iterdir()] == ["data.bin"]


def test_what_a_server_calls_encoded_is_kept_as_sent(server, tmp_path):
    dest = fetch(f"{server.address}/encoded", tmp_path / "data.gz", sha256=DIGEST)
    assert dest.read_bytes() == CONTENT


def test_unknown_digest_is_noted(server, tmp_path):
    dest = fetch(f"{server.address}/good", tmp_path / "data.bin")
    assert recorded_sha256(dest) == DIGEST
    assert recorded_sha256(tmp_path / "other.bin") is None


@pytest.mark.parametrize("path", ["/busy", "/cut-once"])
def test_passing_trouble_is_tried_again(server, tmp_path, path):
    fetch(f"{server.address}{path}", tmp_path / "data.bin", sha256=DIGEST, wait=0.01)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert server.asked[path] > 1


@pytest.mark.parametrize(
    ("path", "options", "reason", "requests"),
    [
        ("/missing", {}, "HTTP 404 Not Found", 1),
        ("/down", {}, "HTTP 503 Service Unavailable (3 tries)", 3),
        ("/cut", {}, "ended after 5,000 of 10,240 bytes (3 tries)", 3),
        ("/good", {"sha256": "0" * 64}, f"wrong content: sha256 {DIGEST}, expected {'0' * 64}", 1),
        ("/good", {"size": 7}, "has 10,240 bytes, expected 7", 1),
        ("/silent", {"timeout": 0.1}, "no answer within 0.1 s (3 tries)", 3),
    ],
)
def test_failures_say_why(server, tmp_path, path, options, reason, requests):
    assert failure(f"{server.address}{path}", tmp_path / "data.bin", **options) == [reason]
    assert server.asked[path] == requests


def test_mirrors_are_tried_in_turn(server, tmp_path):
    urls = [f"{server.address}/missing", f"{server.address}/good"]
    fetch(urls, tmp_path / "data.bin", sha256=DIGEST)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert failure([urls[0], f"{server.address}/down"], tmp_path / "x" / "data.bin") == [
        "HTTP 404 Not Found",
        "HTTP 503 Service Unavailable (3 tries)",
    ]


def test_unresolvable_name_is_asked_once(tmp_path, monkeypatch):
    asked = []

    def resolve(host, *arguments, **options):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert failure("http://no-such-host.invalid/data.bin", tmp_path / "data.bin") == ["Name or service not known"]
    assert (asked, slept) == (["no-such-host.invalid"], [])


def test_refused_connection(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (reason,) = failure(f"http://127.0.0.1:{unused.getsockname()[1]}/x", tmp_path / "data.bin")
    assert "Connection refused" in reason


def test_unknown_kind_of_address(tmp_path):
    (reason,) = failure("gopher-like://host/x", tmp_path / "data.bin")
    assert "unknown url type" in reason


def test_an_older_file_survives_a_failed_download(server, tmp_path):
    dest = tmp_path / "data.bin"
    dest.write_text("older")
    with pytest.raises(FetchFailed):
        fetch(f"{server.address}/cut", dest, wait=0.01)
    assert dest.read_text() == "older"


def test_unwritable_place_is_not_the_network(server, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        fetch(f"{server.address}/good", tmp_path / "file" / "data.bin")
    assert server.asked == {}


def test_an_interrupted_download_goes_on_where_it_was(server, tmp_path):
    dest = tmp_path / "data.bin"
    fetch(f"{server.address}/range", dest, sha256=DIGEST, wait=0.01)
    assert dest.read_bytes() == CONTENT and server.ranges == ["bytes=5000-"]
    dest.unlink()
    with pytest.raises(FetchFailed):
        fetch(f"{server.address}/cut", dest, sha256=DIGEST, wait=0.01)
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:5000]
    fetch(f"{server.address}/range", dest, sha256=DIGEST)
    assert dest.read_bytes() == CONTENT and server.ranges[1:] == ["bytes=5000-"]
    assert list(tmp_path.iterdir()) == [dest]


@pytest.mark.parametrize(
    ("left", "path", "requests"),
    [
        (CONTENT, "/range", 0),  # whole, but was not renamed
        (b"other" * 20, "/range", 2),  # of another file
        (CONTENT + b"more", "/range", 2),
        (CONTENT[:77], "/good", 1),  # a server that sends the whole file again
    ],
)
def test_whatever_an_earlier_process_left_the_file_is_right(server, tmp_path, left, path, requests):
    server.asked["/range"] = 1  # its first answer would be cut short
    (tmp_path / "data.bin.part").write_bytes(left)
    dest = fetch(f"{server.address}{path}", tmp_path / "data.bin", sha256=DIGEST, wait=0.01)
    assert dest.read_bytes() == CONTENT and list(tmp_path.iterdir()) == [dest]
    assert server.asked.get(path, 0) - (path == "/range") == requests


def test_without_a_known_digest_nothing_is_resumed(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"old")
    fetch(f"{server.address}/range", tmp_path / "data.bin", wait=0.01)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT and server.ranges == []


def test_two_at_once_fetch_once(server, tmp_path, caplog):
    dest = tmp_path / "data.bin"
    with _one_process(tmp_path) as is_alone:
        assert is_alone
        other = threading.Thread(target=fetch, args=(f"{server.address}/good", dest), kwargs={"sha256": DIGEST})
        other.start()
        while "waiting for it" not in caplog.text:
            time.sleep(0.005)
        dest.write_bytes(CONTENT)  # as if this process had fetched it
    other.join()
    assert server.asked == {} and list(tmp_path.iterdir()) == [dest]
