"""Models on the hub: what a repository holds, its small files, its cache.

Imports huggingface_hub only when something is asked of it. Endpoint, token, cache folder,
offline mode and timeouts are its own settings (HF_ENDPOINT, HF_TOKEN, HF_HOME, …).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.files.layout import CONFIG, INDEX, SINGLE
from qtui_core.models.hub.errors import explained
from qtui_core.models.hub.remote import RemoteFile
from qtui_core.models.hub.settings import check_settings, endpoint, load_library
from qtui_core.models.quoting import quoted

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"({_PART}(?:/{_PART})?)(?:@([^\s@]+))?")
#: The hub gives out no name with these in it (huggingface_hub, `validate_repo_id`).
_FORBIDDEN = re.compile(r"--|\.\.|[-.](/|$)|\.git$")
#: The longest name the hub gives out, characters.
_MAX_ID = 96
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
    from huggingface_hub import HfApi, constants

    handled = sys.exception()
    try:
        with _quiet():
            info = HfApi().model_info(
                hub_id.repo, revision=hub_id.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
            )
    except Exception as error:
        # Whatever its HTTP library, or its reading of a reply that is no hub's, raises.
        raise explained(error, str(hub_id), endpoint(), handled) from error
    if not info.sha:
        raise ModelError(f"The hub does not say which commit {quoted(hub_id)} is.")
    names = (s.rfilename for s in info.siblings or ())
    return Listing(info.sha, tuple(n for n in names if isinstance(n, str)))


def fetch_small(hub_id: HubId, name: str) -> Path:
    """A small file of the repository, downloaded into the hub cache unless it is there.

    Raises:
        ModelError: it cannot be had.
    """
    load_library()
    from huggingface_hub import hf_hub_download

    handled = sys.exception()
    try:
        with _quiet():
            return Path(hf_hub_download(hub_id.repo, name, revision=hub_id.revision))
    except Exception as error:
        raise explained(error, str(hub_id), endpoint(), handled) from error


def cached_file(hub_id: HubId, name: str, commit: str) -> Path | None:
    """Where the hub cache has a file of that commit, if it has."""
    load_library()
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id.repo, name, revision=commit)
    return Path(found) if isinstance(found, str) else None


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
    from huggingface_hub.utils import build_hf_headers

    return RemoteFile(
        url=hf_hub_url(hub_id.repo, name, revision=commit),
        name=f"{hub_id} {name}",
        headers=build_hf_headers(library_name="qtui"),
        endpoint=endpoint(),
        timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without huggingface_hub's progress bars and log lines: the screen belongs to the program, and
    exceptions report failures."""
    from huggingface_hub import utils

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    shown = not utils.are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    try:
        if shown:
            utils.disable_progress_bars()
        yield
    finally:
        logger.setLevel(level)
        if shown:
            utils.enable_progress_bars()
