"""Models on the hub: what a repository holds, its small files, its cache.

Imports huggingface_hub only when something is asked of it. Endpoint, token, cache folder,
offline mode and timeouts are its own settings (HF_ENDPOINT, HF_TOKEN, HF_HOME, …).
"""

from __future__ import annotations

import os
import re
import threading
from io import BytesIO
from pathlib import Path, PurePath
from urllib.parse import quote

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.extras import installed_version
from qtui_core.models.files.jsontext import load_object
from qtui_core.models.files.layout import CONFIG, INDEX, SINGLE
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import MOST_TEXT_BYTES
from qtui_core.models.hub.errors import unusable
from qtui_core.models.hub.remote import RemoteFile
from qtui_core.models.hub.settings import check_settings, endpoint, load_library
from qtui_core.models.quoting import quoted

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"({_PART}(?:/{_PART})?)(?:@([^\s@]+))?")
#: The hub gives out no name with these in it (huggingface_hub, `validate_repo_id`).
_FORBIDDEN = re.compile(r"--|\.\.|[-.](/|$)|\.git$")
#: The longest name the hub gives out, characters.
_MAX_ID = 96
#: A commit of Git; its name becomes a folder of the cache.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
#: The longest listing that is read, bytes, and the most files in it; repositories of models have
#: some thousands at most.
LISTING_BYTES = 32 << 20
MOST_FILES = 100_000
#: One of these is in every snapshot of a model that was ever used.
_LANDMARKS = (CONFIG, SINGLE, INDEX, "consolidated.safetensors")


@dataclass(frozen=True)
class HubId:
    """A model on the hub: `org/name` (or a bare legacy name), and the revision asked for."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: the paths of its files."""

    commit: str
    files: tuple[str, ...]


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
    check_settings()
    from huggingface_hub import constants

    revision = f"/revision/{quote(hub_id.revision, safe='')}" if hub_id.revision else ""
    address = f"{endpoint()}/api/models/{hub_id.repo}{revision}"
    file = _file(address, str(hub_id), constants.HF_HUB_ETAG_TIMEOUT)
    reply = BytesIO()
    file.download(reply, LISTING_BYTES, waits=())  # what was fetched earlier is opened at once
    what = f"The hub's answer about {quoted(hub_id)}"
    found = load_object(reply.getvalue(), what, unique=False)
    if not isinstance(commit := found.get("sha"), str) or not _COMMIT.fullmatch(commit):
        raise ModelError(f"The hub does not say which commit {quoted(hub_id)} is.")
    siblings = found.get("siblings")
    if not isinstance(siblings, list) or len(siblings) > MOST_FILES:
        raise ModelError(f"{what} lists no files, or more than {MOST_FILES:,}.")
    names = (s.get("rfilename") for s in siblings if isinstance(s, dict))
    return Listing(commit, tuple(n for n in names if isinstance(n, str)))


def fetch(hub_id: HubId, name: str, commit: str, most: int = MOST_TEXT_BYTES) -> Path:
    """A file at the top of the repository, downloaded whole into the hub cache unless it is there.

    It is written as huggingface_hub does where links cannot be made: into the folder of the commit.
    Nothing that the server says becomes part of a path but the commit, which is hexadecimal.

    Args:
        most: bytes; a longer file is refused.

    Raises:
        ModelError: it cannot be had.
    """
    cached = cached_file(hub_id, name, commit)
    if cached is not None:
        return cached
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    assert PurePath(name).name == name
    cache = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub_id.repo, repo_type="model")
    path = cache / "snapshots" / commit / name
    part = path.with_name(f".{name}.{os.getpid()}-{threading.get_ident()}.incomplete")
    revision = PurePath(hub_id.revision or "main")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as sink:
                remote_file(hub_id, name, commit).download(sink, most)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        if str(revision) != commit and not revision.is_absolute() and ".." not in revision.parts:
            ref = cache / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit)
    except OSError as error:
        raise unusable(error) from error
    return path


def cached_file(hub_id: HubId, name: str, commit: str) -> Path | None:
    """Where the hub cache has a file of that commit, if it has. Raises ModelError if that is a
    link which leads out of the cache."""
    load_library()
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id.repo, name, revision=commit)
    if not isinstance(found, str):
        return None
    return followed(Path(found).parents[name.count("/")], name)


def cached_snapshot(hub_id: HubId) -> Path | None:
    """The folder in the hub cache that holds what was last fetched of a revision, if any."""
    for name in _LANDMARKS:
        found = cached_file(hub_id, name, hub_id.revision or "main")
        if found is not None:
            return found.parent
    return None


def remote_file(hub_id: HubId, name: str, commit: str) -> RemoteFile:
    """A file of the repository at a commit, to be read in parts. Asks nothing yet."""
    load_library()
    from huggingface_hub import constants, hf_hub_url

    address = hf_hub_url(hub_id.repo, name, revision=commit)
    return _file(address, f"{hub_id} {name}", constants.HF_HUB_DOWNLOAD_TIMEOUT)


def _file(address: str, name: str, timeout: float) -> RemoteFile:
    from huggingface_hub.utils import build_hf_headers

    try:
        headers = build_hf_headers(library_name="qtui", library_version=installed_version("qtui"))
    except OSError as error:  # of the file that keeps the token
        raise unusable(error) from error
    return RemoteFile(address, name, headers, endpoint(), float(timeout))
