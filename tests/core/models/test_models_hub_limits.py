"""What a hub may cost: bytes and time of whole files and listings have limits."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_hub import COMMIT
from hub_models import BIG, CONFIG, SMALL, says
from huggingface_hub import constants

from qtui_core.models import open_model
from qtui_core.models.hub import remote, repository

LISTING, FILE = "/api/models/", "/config.json"


def reply(handler: Any, *pieces: bytes, pause: float = 0.0, **headers: str) -> None:
    """A reply without a length; it ends with the connection."""
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    for piece in pieces:
        handler.wfile.write(piece)
        time.sleep(pause)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "LISTING_BYTES", 1 << 20)
    monkeypatch.setattr(repository.fetch, "__defaults__", (1 << 20,))
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.3)


@pytest.mark.parametrize("where", [LISTING, FILE])
def test_a_reply_without_end(hub, small, where):
    sent = 0

    def endless(handler: Any) -> None:
        nonlocal sent
        reply(handler)
        while True:
            handler.wfile.write(bytes(1 << 16))
            sent += 1 << 16

    hub.instead[where] = endless
    says("org/one", "sends more than 1,048,576 bytes for 'org/one")
    assert sent < 16 << 20  # what the sockets hold, not what the server has


@pytest.mark.parametrize("where", [LISTING, FILE])
def test_a_length_beyond_the_limit_is_not_read(hub, small, where):
    hub.instead[where] = lambda handler: reply(handler, Content_Length=str(1 << 40))
    says("org/one", "sends more than 1,048,576 bytes")


@pytest.mark.parametrize("where", [LISTING, FILE])
def test_a_compressed_reply_is_not_unpacked(hub, small, where):
    bomb = gzip.compress(bytes(1 << 24))
    hub.instead[where] = lambda handler: reply(handler, bomb, Content_Encoding="gzip")
    says("org/one", "compressed, against request")


@pytest.mark.parametrize("where", [LISTING, FILE])
def test_a_byte_at_a_time(hub, small, where):
    hub.instead[where] = lambda handler: reply(handler, *[b" "] * 200, pause=0.05)
    says("org/one", "which is too slow to wait for; try again later")


def test_headers_a_byte_at_a_time(hub, small):
    def slow(handler: Any) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 200:
            handler.wfile.write(bytes([byte]))
            time.sleep(0.05)

    hub.instead[LISTING] = slow
    says("org/one", "sent 0 bytes of 'org/one' in .* too slow to wait for")


def test_a_hub_that_asks_to_wait_an_hour(hub, monkeypatch):
    waited = []
    # Only this module's: threads of the server sleep by the same name.
    clock = SimpleNamespace(sleep=waited.append, monotonic=time.monotonic)
    monkeypatch.setattr(remote, "time", clock)

    def busy(handler: Any) -> None:
        handler.send_response(429)
        handler.send_header("Retry-After", "3600")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    hub.instead[FILE] = busy
    says("org/one", "answered 429")
    assert waited == [0.01, 0.01]


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ({"sha": "../../etc", "siblings": []}, "does not say which commit"),
        ({"sha": COMMIT, "siblings": "config.json"}, "lists no files, or more than"),
        ({"sha": COMMIT, "siblings": [{}] * 101}, "lists no files, or more than 100"),
        ({"sha": COMMIT, "siblings": [1, None, {"rfilename": 3}]}, "There are no weights"),
        ([], "is not a JSON object"),
    ],
)
def test_listings_that_are_none(hub, monkeypatch, listing, message):
    monkeypatch.setattr(repository, "MOST_FILES", 100)
    hub.instead[LISTING] = lambda handler: reply(handler, json.dumps(listing).encode())
    says("org/one", message)


def test_nothing_is_written_outside_the_cache(hub, tmp_path):
    """Names of the server: an ETag with dots became a path in huggingface_hub."""
    hub.instead[FILE] = lambda handler: reply(
        handler, CONFIG, ETag='"../../../../outside"', X_Repo_Commit="../../outside"
    )
    assert open_model("org/one@main").parameters == BIG.size + SMALL.size
    cache = tmp_path / "cache"
    files = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    folder = "models--org--one"
    assert files == [f"{folder}/refs/main", f"{folder}/snapshots/{COMMIT}/config.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_failed_download_leaves_nothing(hub, small, tmp_path):
    hub.instead[FILE] = lambda handler: reply(handler, bytes(2 << 20))
    says("org/one", "sends more than")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_huggingface_hub_finds_what_was_fetched(hub):
    from huggingface_hub import hf_hub_download

    open_model("org/one")
    seen = len(hub.requests)
    found = Path(hf_hub_download("org/one", "config.json", local_files_only=True))
    assert found.read_bytes() == CONFIG
    hf_hub_download("org/one", "config.json")
    assert [request.method for request in hub.requests[seen:]] == ["HEAD"]


def test_a_password_in_the_address_is_not_shown(hub, monkeypatch):
    login = hub.url.replace("http://", "http://user:secret@")
    monkeypatch.setattr(constants, "ENDPOINT", login)
    assert "secret" not in str(open_model("org/one").location)
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:secret@127.0.0.1:9")
    assert "secret" not in says("org/other", "from http://127.0.0.1:9")
    monkeypatch.setattr(constants, "ENDPOINT", "ftp://user:secret@host")
    assert "secret" not in says("org/other", "is 'ftp://host'")
    for address in ("user:secret@host", "user:a/secret@host", "http:/user:secret@host"):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert "secret" not in says("org/other", "is 'host'")
