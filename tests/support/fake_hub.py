"""A model hub in miniature, and the storage host to which it redirects, on two local ports.

It answers the requests of huggingface_hub: the list of a repository, HEAD and GET of files with
commit and etag, redirects for weights, and byte ranges. It counts every byte that it serves, and
can be made to fail as hubs and networks do.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """A request and its answer."""

    host: str  # "hub" or "storage"
    method: str
    path: str
    range: str | None
    authorization: str | None
    status: int = 0
    served: int = 0


@dataclass
class FakeHub:
    """The hub. Tests set its attributes to change its behaviour."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    gated: bool = False
    token: str | None = None  # if set, required for everything
    ignore_range: bool = False
    cut_to: list[int] = field(default_factory=list)  # body bytes of the next storage replies
    failures: list[int] = field(default_factory=list)  # statuses of the next storage replies
    stalls: int = 0  # storage replies that never arrive
    expire_links: bool = False  # every signed address works once only
    redirect_to: str | None = None  # instead of the storage host
    shift_range: int = 0  # report a wrong start of the bytes
    sha: str | None = COMMIT
    #: Part of a path -> what answers in place of the hub.
    instead: dict[str, Callable[[_Handler], None]] = field(default_factory=dict)
    url: str = ""
    storage_url: str = ""

    def weight_bytes(self) -> int:
        """Bytes that were served of safetensors files, without headers of HTTP."""
        return sum(
            r.served for r in self.requests if ".safetensors" in r.path and "json" not in r.path
        )

    def of(self, host: str, method: str = "GET") -> list[Request]:
        return [r for r in self.requests if r.host == host and r.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    host: str

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.entry = Request(
            self.host,
            self.command,
            unquote(self.path),
            self.headers.get("Range"),
            self.headers.get("Authorization"),
        )
        self.hub.requests.append(self.entry)
        for part, answer in self.hub.instead.items():
            if part in self.path:
                with suppress(OSError):  # the client has enough
                    answer(self)
                self.close_connection = True
                return
        if self.host == "storage":
            self._storage()
        elif self.path.startswith("/api/models/"):
            self._listing()
        else:
            self._resolve()

    def _reply(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut: int | None = None
    ) -> None:
        self.entry.status = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            sent = body if cut is None else body[:cut]
            self.entry.served = len(sent)
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(sent)
            if cut is not None and cut < len(body):
                self.close_connection = True

    def _error(self, status: int, code: str | None = None, message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        if message:
            headers["X-Error-Message"] = message
        self._reply(status, headers, b"{}")

    def _listing(self) -> None:
        path = unquote(self.path).partition("?")[0]
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+|[^/]+)(?:/revision/(.+))?", path)
        files = self.hub.repos.get(match[1]) if match else None
        if match is None or files is None:
            return self._error(401, None, "Invalid username or password.")
        if self.hub.token and self.entry.authorization != f"Bearer {self.hub.token}":
            return self._error(401, None, "Invalid credentials in Authorization header")
        if match[2] not in (None, "main", "v1", COMMIT):
            return self._error(404, "RevisionNotFound")
        body = {
            "id": match[1],
            "sha": self.hub.sha,
            "siblings": [{"rfilename": name, "size": len(data)} for name, data in files.items()],
        }
        return self._reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _resolve(self) -> None:
        match = re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", unquote(self.path))
        if match is None or match[1] not in self.hub.repos:
            return self._error(404, "RepoNotFound")
        content = self.hub.repos[match[1]].get(match[3])
        if content is None:
            return self._error(404, "EntryNotFound")
        if self.hub.gated:
            return self._error(403, "GatedRepo")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"X-Repo-Commit": COMMIT, "ETag": etag}
        if match[3].endswith(".safetensors"):
            target = (
                self.hub.redirect_to
                or f"{self.hub.storage_url}/{match[1]}/{match[3]}?signed={len(self.hub.requests)}"
            )
            headers |= {
                "X-Linked-Etag": etag,
                "X-Linked-Size": str(len(content)),
                "Location": target,
            }
            return self._reply(302, headers)
        return self._send_file(content, headers)

    def _storage(self) -> None:
        path = unquote(self.path)[1:].partition("?signed=")[0]
        if self.hub.stalls:
            self.hub.stalls -= 1
            self.close_connection = True
            time.sleep(2.0)
            return None
        if self.hub.failures:
            return self._error(self.hub.failures.pop(0))
        uses = [r for r in self.hub.requests if r.host == "storage" and r.path == self.entry.path]
        if self.hub.expire_links and len(uses) > 1:
            return self._error(403)
        repo, _, name = path.rpartition("/")
        return self._send_file(self.hub.repos[repo][name], {})

    def _send_file(self, content: bytes, headers: dict[str, str]) -> None:
        cut = self.hub.cut_to.pop(0) if self.host == "storage" and self.hub.cut_to else None
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.entry.range or "")
        if asked is None or self.hub.ignore_range:
            return self._reply(200, headers, content, cut)
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        if first >= len(content):
            return self._error(416)
        told = first + self.hub.shift_range
        headers = {**headers, "Content-Range": f"bytes {told}-{last}/{len(content)}"}
        return self._reply(206, headers, content[first : last + 1], cut)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent, because some tests drop connections."""


@contextmanager
def serve() -> Iterator[FakeHub]:
    """A running hub and storage host, until the block ends."""
    hub = FakeHub()
    servers = []
    for host in ("hub", "storage"):
        handler = type(f"{host}_handler", (_Handler,), {"hub": hub, "host": host})
        server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.url, hub.storage_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
