"""Files on the hub, by byte range or whole.

The session, its proxies and certificates, the headers, the token and offline mode are
huggingface_hub's. What is done here is what it does not offer: reading part of a file, and limits
of bytes and time. A server may send without end, a byte a second, or ask to wait an hour.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.safetensors import PREFIX, Header, header_length, parse_header
from qtui_core.models.hub.errors import chain, refused, unreachable
from qtui_core.models.quoting import quoted

#: Bytes asked for at once when reading a header; most headers fit.
FIRST_REQUEST = 1 << 16
#: Seconds to wait before each further attempt after a failure that may pass.
RETRY_WAITS = (0.5, 2.0)
MAX_REDIRECTS = 5
#: Seconds for which a whole file may come at any pace, and its bytes a second on average after
#: that. With a reply that never ends and no size told, only this ends the waiting.
PATIENCE_SECONDS = 60.0
SLOWEST = 64 << 10
_RETRY_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: A redirect target that answers so was a signed address that has expired.
_EXPIRED = frozenset({400, 401, 403, 404, 410})
_HUB = ("https", "huggingface.co", 443)


class _Passing(Exception):
    """A failure that may be gone at the next attempt."""


class _Expired(Exception):
    """The remembered address of a file is no longer valid."""


@dataclass
class RemoteFile:
    """One file on the hub, read by HTTP range.

    Attributes:
        url: its address on the hub.
        name: what messages call it.
        headers: of every request; the authorization among them goes to the hub only.
        endpoint: address of the hub, the host that may see the authorization.
        timeout: seconds to wait for the next bytes.
    """

    url: str
    name: str
    headers: Mapping[str, str]
    endpoint: str
    timeout: float
    _location: str | None = field(default=None, init=False, repr=False)

    def read(self, begin: int, end: int) -> memoryview:
        """Bytes [begin, end). Only these travel; what arrived before a failure is kept.

        Raises:
            ModelError: unreachable, refused, not served by range, or cut short every time.
        """
        data, _ = self._fetch(begin, end, exact=True)
        return data

    def read_start(self) -> tuple[memoryview, int]:
        """The first FIRST_REQUEST bytes, or all when there are fewer, and the size of the file."""
        return self._fetch(0, FIRST_REQUEST, exact=False)

    def download(self, sink: BinaryIO, most: int, waits: Sequence[float] | None = None) -> None:
        """Writes the whole file to `sink`, which can be truncated.

        Args:
            most: bytes; a longer file is refused before its rest is read.
            waits: seconds before each further attempt; None: RETRY_WAITS.

        Raises:
            ModelError: unreachable, refused, longer than `most`, or slower than `SLOWEST`.
        """
        whole = _Whole(self.name, sink, most)
        failure: list[BaseException] = []
        handled = sys.exception()

        def work() -> None:
            try:
                self._complete(whole, RETRY_WAITS if waits is None else waits, handled)
            except BaseException as error:  # raised where it was asked for
                failure.append(error)

        # In a thread of its own, because a server may also send its headers a byte at a time,
        # and no time limit of the HTTP library counts more than the pause between two bytes.
        begun = time.monotonic()
        thread = threading.Thread(target=work, name=f"fetch {self.name}", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
            seconds = time.monotonic() - begun
            if thread.is_alive() and seconds > PATIENCE_SECONDS + whole.position / SLOWEST:
                whole.abandoned = True
                raise ModelError(
                    f"The server sent {whole.position:,} bytes of {quoted(self.name)} in "
                    f"{seconds:.0f} s, which is too slow to wait for; try again later."
                )
        if failure:
            raise failure[0]

    def close(self) -> None:
        """Nothing is held: connections belong to huggingface_hub's session."""

    def _fetch(self, begin: int, end: int, *, exact: bool) -> tuple[memoryview, int]:
        transfer = _Transfer(self.name, begin, end, exact)
        self._complete(transfer, RETRY_WAITS, sys.exception())
        return transfer.result()

    def _complete(
        self,
        transfer: _Transfer | _Whole,
        seconds: Sequence[float],
        handled: BaseException | None,
    ) -> None:
        waits = iter(seconds)
        while True:
            try:
                return self._attempt(transfer)
            except _Expired:
                self._location = None
            except _Passing as error:
                wait = next(waits, None)
                if wait is None:
                    causes = chain(error, handled)
                    raise unreachable(self.name, self.endpoint, causes) from error
                time.sleep(wait)

    def _attempt(self, transfer: _Transfer | _Whole) -> None:
        url = self._location or self.url
        for _ in range(MAX_REDIRECTS):
            with self._request(url, transfer.position, transfer.end) as (response, chunks):
                status = response.status_code
                if status in _REDIRECTS and "location" in response.headers:
                    url = _redirected(url, response.headers["location"], self.name)
                    continue
                if url == self._location and status in _EXPIRED:
                    raise _Expired
                if status in _RETRY_STATUS:
                    raise _Passing(f"the server answered {status}")
                if status not in (200, 206, 416):
                    if _origin(url) != _origin(self.endpoint):
                        raise ModelError(
                            f"The server that keeps {quoted(self.name)} for the hub answered "
                            f"{status}; try again later."
                        )
                    raise refused(status, response.headers, self.name)
                self._location = url if url != self.url else None
                transfer.receive(status, response.headers, chunks)
                return
        raise ModelError(f"{quoted(self.name)} is redirected in circles by the server.")

    @contextmanager
    def _request(
        self, url: str, begin: int, end: int | None
    ) -> Iterator[tuple[Any, Iterator[bytes]]]:
        headers = {k: v for k, v in self.headers.items() if k.lower() != "authorization"}
        if _origin(url) in {_origin(self.endpoint), _HUB}:
            headers = dict(self.headers)
        if end is not None:
            headers["Range"] = f"bytes={begin}-{end - 1}"
        # Compressed bytes could not be counted or placed.
        headers["Accept-Encoding"] = "identity"
        with ExitStack() as stack:
            try:
                response, chunks = stack.enter_context(_stream(url, headers, self.timeout))
            except Exception as error:
                raise self._failure(error) from error
            yield response, self._guarded(chunks)

    def _guarded(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from chunks
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        # Failures arrive as the exceptions of whichever HTTP library this huggingface_hub
        # uses (requests, httpx, httpx2); they share no base class.
        if type(error).__name__ == "OfflineModeIsEnabled":
            return unreachable(self.name, self.endpoint, chain(error))
        return _Passing(type(error).__name__)


class _Transfer:
    """The bytes of one range, however many attempts they take."""

    def __init__(self, name: str, begin: int, end: int, exact: bool) -> None:
        self.name = name
        self.begin = begin
        self.end = end
        self.exact = exact
        self.position = begin
        self._data = bytearray(end - begin)
        self._size: int | None = None

    def receive(self, status: int, headers: Mapping[str, str], chunks: Iterator[bytes]) -> None:
        """Take the body of a response, never more than was asked for."""
        _check_encoding(headers, self.name)
        if status == 416:
            state = f"ends before byte {self.position:,}" if self.position else "is empty"
            raise ModelError(f"{quoted(self.name)} on the server {state}.")
        self._check_range(status, headers)
        for chunk in chunks:
            offset = self.position - self.begin
            part = chunk[: self.end - self.position]
            self._data[offset : offset + len(part)] = part
            self.position += len(part)
            # The end of a reply of the right length is read too, which is what lets the
            # session use the connection again; more than was asked for is left unread.
            if self.position == self.end and (status == 200 or len(part) < len(chunk)):
                return
        if self.position < self.end:
            raise _Passing("the reply was cut short")

    def result(self) -> tuple[memoryview, int]:
        assert self._size is not None
        return memoryview(self._data).toreadonly()[: self.end - self.begin], self._size

    def _check_range(self, status: int, headers: Mapping[str, str]) -> None:
        if status == 200:
            self._size = _whole_number(headers.get("content-length"))
            if self.position != 0 or self._size is None:
                # Skipping to the rows would mean downloading everything before them.
                raise ModelError(
                    f"The server of {quoted(self.name)} does not serve parts of files. "
                    f"Download the model (`hf download`) and open its folder."
                )
            first, last = 0, self._size - 1
        else:
            first, last, self._size = _content_range(headers.get("content-range", ""), self.name)
        if self._size < self.end:
            if self.exact:
                raise ModelError(
                    f"{quoted(self.name)} on the server has {self._size:,} bytes, fewer than "
                    f"its header says."
                )
            self.end = self._size
        if first != self.position or (status == 206 and last + 1 > self.end):
            raise ModelError(f"The server of {quoted(self.name)} sent other bytes than asked for.")


class _Whole:
    """A file from its beginning to its end, which only the end of the reply tells."""

    end = None

    def __init__(self, name: str, sink: BinaryIO, most: int) -> None:
        self.name = name
        self.position = 0
        self.abandoned = False
        self._sink = sink
        self._most = most

    def receive(self, status: int, headers: Mapping[str, str], chunks: Iterator[bytes]) -> None:
        """Takes the body of a response in place of what an attempt before it brought."""
        _check_encoding(headers, self.name)
        if status != 200:
            raise ModelError(f"The hub answered {status} when asked for {quoted(self.name)}.")
        self._check(_whole_number(headers.get("content-length")) or 0)
        self.position = 0
        self._sink.seek(0)
        self._sink.truncate()
        for chunk in chunks:
            if self.abandoned:
                return
            self._check(self.position + len(chunk))
            self._sink.write(chunk)
            self.position += len(chunk)

    def _check(self, size: int) -> None:
        if size > self._most:
            raise ModelError(
                f"The server sends more than {self._most:,} bytes for {quoted(self.name)}; no such "
                f"file is that long."
            )


def _check_encoding(headers: Mapping[str, str], name: str) -> None:
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ModelError(f"The server sent {quoted(name)} compressed, against request.")


def read_remote_header(file: RemoteFile, name: str) -> Header:
    """Header of a safetensors file on the hub, its tensors filed under `name`: one request,
    two when it is longer than `FIRST_REQUEST`.

    Raises:
        ModelError: the file cannot be had, or its header is not true of it.
    """
    start, size = file.read_start()
    length = header_length(bytes(start[: PREFIX + 16]), name, size)
    raw = bytes(start[PREFIX : PREFIX + length])
    if len(raw) < length:
        raw += file.read(PREFIX + len(raw), PREFIX + length)
    return parse_header(raw, name, size)


@contextmanager
def _stream(
    url: str, headers: Mapping[str, str], timeout: float
) -> Iterator[tuple[Any, Iterator[bytes]]]:
    from huggingface_hub.utils import get_session

    with get_session().stream(
        "GET", url, headers=headers, timeout=timeout, follow_redirects=False
    ) as response:
        yield response, response.iter_raw()


def _redirected(url: str, location: str, name: str) -> str:
    try:
        target = urljoin(url, location)
        scheme, host, _ = _origin(target)
    except ValueError:
        scheme = host = ""
    if scheme not in ("http", "https") or not host:
        raise ModelError(f"The server of {quoted(name)} redirects to {quoted(location)}.")
    return target


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


def _content_range(text: str, name: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})", text.strip())
    if match is None:
        raise ModelError(
            f"The server of {quoted(name)} sent part of the file without saying which part."
        )
    return int(match[1]), int(match[2]), int(match[3])


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,19}", text) else None
