"""Downloads from a server of this machine that has several kinds of trouble."""

import hashlib
import http.server
import threading
import time

import pytest

from fedjax_ssl.data.reading.fetch import FetchFailed, fetch

CONTENT = bytes(range(256)) * 40
DIGEST = hashlib.sha256(CONTENT).hexdigest()
CUT = 5000


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path; `server.asked` counts the requests of each."""

    def do_GET(self):
        count = self.server.asked[self.path] = self.server.asked.get(self.path, 0) + 1
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/busy" and count < 3:
            self.send_error(503)
        elif self.path == "/silent":
            self.server.ended.wait(10)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            cut = self.path == "/cut" or (self.path == "/cut-once" and count == 1)
            self.wfile.write(CONTENT[:CUT] if cut else CONTENT)

    def log_message(self, *arguments):
        del arguments


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = {}
    server.ended = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.address = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/good", "/busy", "/cut-once"])
def test_a_file_comes_whole_in_spite_of_passing_trouble(server, tmp_path, path):
    dest = tmp_path / "new" / "folder" / "data.gz"
    assert fetch([f"{server.address}{path}"], dest, sha256=DIGEST) == dest
    assert dest.read_bytes() == CONTENT and [*dest.parent.iterdir()] == [dest]
    fetch([f"{server.address}/missing"], dest, sha256=DIGEST)  # which is not asked
    assert set(server.asked) == {path}


@pytest.mark.parametrize(
    ("path", "options", "reason"),
    [
        ("/missing", {}, "404 Client Error: Not Found"),
        ("/cut", {}, "5000 bytes read, 5240 more expected"),
        ("/good", {"sha256": "0" * 64}, DIGEST),
        ("/silent", {"timeout": 0.1}, "Read timed out"),
    ],
)
def test_failures_say_why_and_leave_what_was_there(server, tmp_path, path, options, reason):
    dest = tmp_path / "data.bin"
    if options.get("sha256"):
        dest.write_text("older")
    with pytest.raises(FetchFailed) as caught:
        fetch([f"{server.address}{path}"], dest, **options)
    assert reason in caught.value.tried[0][1]
    assert [file.read_text() for file in tmp_path.iterdir()] == ["older"] * len(
        options.get("sha256", "")[:1]
    )


def test_mirrors_are_tried_in_turn(server, tmp_path):
    bad = f"{server.address}/missing"
    nobody = "http://127.0.0.1:9/x"
    with pytest.raises(FetchFailed) as caught:
        fetch([bad, nobody], tmp_path / "data.bin")
    assert [url for url, _ in caught.value.tried] == [bad, nobody]
    dest = fetch([bad, f"{server.address}/good"], tmp_path / "data.bin", sha256=DIGEST)
    assert dest.read_bytes() == CONTENT
