"""Models on the hub: what a repository holds, its small files, and parts of its large ones; and
what the hub's cache has of them when it cannot be asked.

The session, its proxies, token, retries, cache and offline mode are huggingface_hub's, as its
environment variables (HF_ENDPOINT, HF_TOKEN, HF_HOME, …) set it up. What is added is reading part
of a file, and limits of bytes and time. The library is imported only when something is asked of it.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.extras import MissingLibrary, importing
from qtui_core.job import Job
from qtui_core.models.files.layout import CONFIG, INDEX, SINGLE, WeightFiles, choose_weights
from qtui_core.models.files.local import MOST_TEXT_BYTES, LocalFile, followed
from qtui_core.models.files.safetensors import (
    PREFIX,
    Header,
    header_length,
    parse_header,
    read_header,
)
from qtui_core.models.places import Folder, Headers, named_files, open_at, read_config
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource, TensorFile
from qtui_core.threads import in_daemon

T = TypeVar("T")

#: Requests in flight; a large model has more than a hundred files.
PARALLEL = 8
#: Bytes asked for at once when reading a header; most headers fit.
FIRST_REQUEST = 1 << 16
#: Seconds to wait before each further attempt at a part of a file.
RETRY_WAITS = (0.5, 2.0)
#: Seconds for which a listing or a whole file may come at any pace, and the bytes a second of a
#: file on average after that.
PATIENCE_SECONDS = 60.0
SLOWEST = 64 << 10
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"({_PART}(?:/{_PART})?)(?:@([^\s@]+))?")
#: The hub gives out no name with these in it (huggingface_hub, `validate_repo_id`), and no longer
#: one, characters.
_FORBIDDEN = re.compile(r"--|\.\.|[-.](/|$)|\.git$")
_MAX_ID = 96
#: What may pass, and how a signed address answers that has expired.
_RETRY_STATUS = (408, 429, 500, 502, 503, 504)
_EXPIRED = (400, 401, 403, 404, 410)
#: Where in a file, and of how many bytes, the body of a reply is.
_PLACED = r"bytes (\d{1,19})-\d{1,19}/(\d{1,19})"
#: One of these is in every snapshot of a model that was ever used.
_LANDMARKS = (CONFIG, SINGLE, INDEX, "consolidated.safetensors")


class Unreachable(ModelError):
    """The hub gave no answer: no network, no server, or offline mode."""


class Unknown(ModelError):
    """The hub has no such model, or does not show it to this user."""


@dataclass(frozen=True)
class HubId:
    """A model on the hub: `org/name` (or a bare legacy name), and the revision asked for."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: the bytes of its files by path, 0 where the hub does not say."""

    commit: str
    files: Mapping[str, int]


def parse_hub_id(text: str) -> HubId | None:
    """`org/name` or `name`, with an optional `@revision`; None when it cannot be one."""
    match = _HUB_ID.fullmatch(text)
    if match is None or len(match[1]) > _MAX_ID or _FORBIDDEN.search(match[1]):
        return None
    return HubId(match[1], match[2])


def list_files(hub_id: HubId) -> Listing:
    """Files of the repository at the commit the revision now means: one request.

    Raises:
        Unreachable: no answer. ModelError: unknown, gated, private, no such revision, or
            settings that nothing can be asked with.
    """
    check_token()
    from huggingface_hub import HfApi, constants

    ask = partial(
        HfApi(endpoint=endpoint(), library_name="qtui").model_info,
        hub_id.repo,
        revision=hub_id.revision,
        timeout=float(constants.HF_HUB_ETAG_TIMEOUT),
        files_metadata=True,
    )
    info = _patiently(ask, str(hub_id))
    if not isinstance(info.sha, str):
        raise ModelError(f"The hub does not say which commit {quoted(hub_id)} is.")
    return Listing(info.sha, {s.rfilename: s.size or 0 for s in info.siblings or ()})


def fetch(hub_id: HubId, name: str, listing: Listing, most: int = MOST_TEXT_BYTES) -> Path:
    """A file of the repository, downloaded whole into the hub cache unless it is there.

    Raises:
        ModelError: it cannot be had, or is longer than `most` bytes.
    """
    cached = cached_file(hub_id, name, listing.commit)
    if cached is not None:
        return cached
    subject, size = f"{hub_id} {name}", listing.files.get(name, 0)
    if size > most:
        raise ModelError(f"{quoted(subject)} has {size:,} bytes; no such file is that long.")
    from huggingface_hub import hf_hub_download

    download = partial(
        hf_hub_download,
        hub_id.repo,
        name,
        revision=hub_id.revision,
        endpoint=endpoint(),
        library_name="qtui",
    )
    path = Path(_patiently(download, subject, size))
    return followed(path.parents[name.count("/")], name)


def cached_file(hub_id: HubId, name: str, revision: str) -> Path | None:
    """Where the hub cache has a file of that revision, if it has. Raises ModelError if that is a
    link which leads out of the cache."""
    load_library()
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(hub_id.repo, name, revision=revision)
    if not isinstance(cached, str):
        return None
    return followed(Path(cached).parents[name.count("/")], name)


def cached_snapshot(hub_id: HubId) -> Path | None:
    """The folder in the hub cache that holds what was last fetched of a revision, if any."""
    cached = (cached_file(hub_id, name, hub_id.revision or "main") for name in _LANDMARKS)
    return next((path.parent for path in cached if path is not None), None)


class RemoteFile:
    """One file of a repository at a commit, read by HTTP range."""

    def __init__(self, hub_id: HubId, name: str, commit: str) -> None:
        load_library()
        from huggingface_hub import hf_hub_url

        self.name = f"{hub_id} {name}"
        self._url = hf_hub_url(hub_id.repo, name, revision=commit, endpoint=endpoint())
        #: Where the hub sent the last request to; a signed address that expires.
        self._location: str | None = None

    def read(self, begin: int, end: int) -> memoryview:
        """Bytes [begin, end). Only these travel; what arrived before a failure is kept.

        Raises:
            ModelError: unreachable, refused, not served by range, or cut short every time.
        """
        return self._read(begin, end)[0]

    def read_header(self, name: str) -> Header:
        """The header of a safetensors file, its tensors filed under `name`: one request, two when
        it is longer than FIRST_REQUEST.

        Raises:
            ModelError: the file cannot be had, or its header is not true of it.
        """
        start, size = self._read(0, FIRST_REQUEST, exact=False)
        length = header_length(bytes(start[: PREFIX + 16]), name, size)
        raw = bytes(start[PREFIX : PREFIX + length])
        if len(raw) < length:
            raw += self.read(PREFIX + len(raw), PREFIX + length)
        return parse_header(raw, name, size)

    def close(self) -> None:
        """Nothing is held: connections belong to huggingface_hub's session."""

    def _read(self, begin: int, end: int, exact: bool = True) -> tuple[memoryview, int]:
        """Bytes [begin, end), fewer only if the file ends before and not `exact`; and its size."""
        data = bytearray()
        for wait in (*RETRY_WAITS, None):
            try:
                most, size = self._receive(begin, end, data, exact)
                if len(data) == most:
                    return memoryview(data).toreadonly(), size
                raise EOFError("the reply was cut short")
            except ModelError:
                raise
            except Exception as error:  # of whichever HTTP library the session is
                status = getattr(getattr(error, "response", None), "status_code", None)
                final = type(error).__name__ == "OfflineModeIsEnabled"
                if wait is None or final or status not in (None, *_RETRY_STATUS):
                    raise _explained(error, self.name) from error
                time.sleep(wait)
        raise AssertionError

    def _receive(self, begin: int, end: int, data: bytearray, exact: bool) -> tuple[int, int]:
        """One request for what is still missing of [begin, end); returns how many bytes there are
        to be, and the size of the file."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        position = begin + len(data)
        headers = {"Range": f"bytes={position}-{end - 1}", "Accept-Encoding": "identity"}
        if self._location is None:
            headers |= build_hf_headers(library_name="qtui")
        with get_session().stream(
            "GET",
            self._location or self._url,
            headers=headers,
            timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
            follow_redirects=True,
        ) as reply:
            status = reply.status_code
            if self._location is not None and status in _EXPIRED:
                self._location = None
                return self._receive(begin, end, data, exact)
            if status == 416:
                raise ModelError(f"{quoted(self.name)} on the server is empty or was cut off.")
            hf_raise_for_status(reply)
            self._location = str(reply.url) if str(reply.url) != self._url else None
            said = (reply.headers.get(f"content-{name}", "") for name in ("range", "length"))
            part, whole = map(re.fullmatch, (_PLACED, r"\d{1,19}"), said)
            first, size = -1, 0
            if status == 206 and part:
                first, size = int(part[1]), int(part[2])
            elif status == 200 and whole:
                first, size = 0, int(whole[0])
            if first != position:
                # Skipping to the rows would mean downloading everything before them.
                raise ModelError(
                    f"The server of {quoted(self.name)} does not serve parts of files. Download "
                    f"the model (`hf download`) and open its folder."
                )
            if size < end and exact:
                raise ModelError(
                    f"{quoted(self.name)} on the server has {size:,} bytes, fewer than its header "
                    f"says."
                )
            most = min(end, size) - begin
            for chunk in reply.iter_raw():
                more = len(data) + len(chunk) > most
                data += chunk[: most - len(data)]
                # The end of a reply of the right length is read too, which is what lets the
                # session use the connection again.
                if more or (status == 200 and len(data) == most):
                    break
        return most, size


@cache
def load_library() -> None:
    """Import huggingface_hub; to be called before anything of it is used.

    Raises:
        MissingLibrary: it is not installed.
        ModelError: it does not start with the settings it finds.
    """
    try:
        # It prints what its own import fails with; standard output belongs to the program.
        with importing("Asking the hub", "huggingface_hub"), redirect_stdout(io.StringIO()):
            from huggingface_hub import HfApi, utils  # noqa: F401
        # What it logs and draws on the way is no part of a report: what fails is raised.
        utils.logging.set_verbosity_error()
        utils.disable_progress_bars()
    except MissingLibrary:
        raise
    except Exception as error:
        # Its parsing of the environment is all that can fail here, with whatever int() and
        # its HTTP library raise.
        raise ModelError(
            f"The hub cannot be asked with these settings ({_reason(error)}). Check the "
            f"environment variables that begin with HF_."
        ) from error


def endpoint() -> str:
    """Address of the hub in use."""
    load_library()
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def check_token() -> None:
    """Raises ModelError if the login token cannot be sent: the HTTP library's error shows it."""
    load_library()
    from huggingface_hub import constants, get_token

    try:
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except OSError as error:
        raise _explained(error, "the login token") from error
    if token and not (token.isascii() and token.isprintable()):
        raise ModelError(
            "The login token holds a character that no token has. Copy it again into HF_TOKEN, "
            "or log in again with `hf auth login`."
        )


def without_login(address: str) -> str:
    """An address without a user and password, also where it is no good address: all before the last
    @ may belong to them."""
    return re.sub(r"^([a-z]+://)?.*@", r"\1", address, flags=re.IGNORECASE | re.DOTALL)


def _patiently(call: Callable[[], T], subject: str, size: int = 0) -> T:
    """What a call of huggingface_hub returns, in a thread of its own: no time limit of its HTTP
    library counts more than the pause between two bytes, and it waits as long as a server asks."""
    limit = PATIENCE_SECONDS + size / SLOWEST
    answer = in_daemon(call)
    try:
        return answer.result(limit)
    except Exception as error:
        if answer.done():
            raise _explained(error, subject) from error
        raise Unreachable(
            f"The hub did not send {quoted(subject)} in {limit:.0f} s, which is too slow to wait "
            f"for; try again later."
        ) from None


def _explained(error: BaseException, subject: str) -> ModelError:
    """The sentence for what a call of huggingface_hub raised; `subject` is what was asked for:
    "org/name", "org/name@revision", or that and a file."""
    from huggingface_hub import errors

    name, repo = quoted(subject), quoted(re.split("[@ ]", subject)[0])
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    statuses = [getattr(getattr(cause, "response", None), "status_code", 0) for cause in causes]
    status = max(statuses, default=0)

    def by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if by(errors.OfflineModeIsEnabled):
        set_by = [v for v in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(v)]
        variable = set_by[0] if set_by else "HF_HUB_OFFLINE"
        return Unreachable(f"{name} is not in the hub cache, and {variable} forbids fetching it.")
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if by(errors.GatedRepoError):
        return ModelError(f"{name} is gated: ask for access on its page on the hub, then {log_in}.")
    if by(errors.RevisionNotFoundError):
        return ModelError(f"{repo} is on the hub, but has no such revision: {name}.")
    if status == 401 and any("Invalid credentials" in str(cause) for cause in causes):
        return ModelError(f"The hub rejects the login token it was shown for {name}; {log_in}.")
    if by(errors.RepositoryNotFoundError) or (status in (401, 404) and " " not in subject):
        return Unknown(f"The hub knows no model {repo}, or it is private: {log_in}.")
    if status >= 400:
        kind = ModelError if status < 500 else Unreachable
        return kind(f"The hub answered {status} when asked for {name}; try again later.")
    if isinstance(error, OSError) and error.filename and error.strerror:
        return ModelError(
            f"The hub cache cannot be used: {quoted(error.filename)}: {error.strerror}. HF_HOME "
            f"says where it is."
        )
    return Unreachable(
        f"Could not get {name} from {without_login(endpoint())} ({_reason(causes[-1])}). Check the "
        f"network connection, or open a model that is already on this machine."
    )


def _reason(error: BaseException) -> str:
    """What an exception says, on one line, short, and without a full stop of its own."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return quoted(text, 120)[1:-1]


class Repository:
    """A repository at one commit. Small files are downloaded into the hub cache; of weights that
    it does not hold, parts are read by range."""

    def __init__(self, hub_id: HubId, listing: Listing) -> None:
        self._id, self._listing = hub_id, listing

    def file(self, name: str) -> Path:
        return fetch(self._id, name, self._listing)

    def has(self, name: str) -> bool:
        return name in self._listing.files

    def read_headers(self, names: Sequence[str], job: Job) -> Headers:
        headers: dict[str, Header] = {}
        files: dict[str, TensorFile] = {}
        remote = {}
        for name in names:
            path = cached_file(self._id, name, self._listing.commit)
            if path is not None:
                files[name], headers[name] = LocalFile(path), read_header(path, name)
            else:
                files[name] = remote[name] = RemoteFile(self._id, name, self._listing.commit)
        with ThreadPoolExecutor(PARALLEL) as pool:
            waiting = {pool.submit(f.read_header, name): name for name, f in remote.items()}
            try:
                for future in as_completed(waiting):
                    headers[waiting[future]] = future.result()
                    job.at(len(headers), len(names))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return [headers[name] for name in names], files


def open_hub(hub_id: HubId, job: Job) -> ModelSource:
    """The model at the commit its revision means now. When the hub gives no listing of it,
    whatever the reason, what was fetched of it earlier is opened from the hub cache.

    Raises:
        ModelError: it is unknown, gated, unreachable, or cannot be opened.
    """
    try:
        listing = list_files(hub_id)
    except ModelError:
        snapshot = cached_snapshot(hub_id)
        if snapshot is None:
            raise
        return _open_snapshot(hub_id, snapshot, job)
    where, commit = f"the repository {quoted(hub_id)}", listing.commit
    place = Repository(hub_id, listing)
    config = read_config(place, listing.files)
    weights = choose_weights(list(listing.files), where)
    if weights.missing and config is None:
        raise ModelError(weights.missing)
    location = f"{without_login(endpoint())}/{hub_id.repo}/tree/{commit}"
    return open_at(
        place, weights, config, str(hub_id), "hub", location, where=where, commit=commit, job=job
    )


def _open_snapshot(hub_id: HubId, snapshot: Path, job: Job) -> ModelSource:
    place = Folder(snapshot)
    names = place.names()
    config = read_config(place, names)
    weights = choose_weights(names, f"the hub cache of {quoted(hub_id)}", snapshot)
    files, _ = named_files(place, weights)
    if weights.missing or not all((snapshot / name).is_file() for name in files):
        # Usual after headers were read by range: the description was kept, the weights not.
        weights = WeightFiles(
            missing=f"The hub cache holds the description of {quoted(hub_id)} but not its "
            f"weights, and the hub cannot be asked now.",
        )
    return open_at(
        place, weights, config, str(hub_id), "hub", snapshot, commit=snapshot.name, job=job
    )
