"""Models on the hub, and what its cache holds of them when it cannot be asked."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.job import Job
from qtui_core.models import hub
from qtui_core.models.files.layout import WeightFiles, choose_weights
from qtui_core.models.files.local import LocalFile, read_header
from qtui_core.models.files.safetensors import Header
from qtui_core.models.places import Folder, Headers, named_files, open_at, read_config
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource, TensorFile

#: Requests in flight; a large model has more than a hundred files.
PARALLEL = 8


class Repository:
    """A repository at one commit. Small files are downloaded into the hub cache; of weights that
    it does not hold, parts are read by range."""

    def __init__(self, hub_id: hub.HubId, listing: hub.Listing) -> None:
        self._id, self._listing = hub_id, listing

    def file(self, name: str) -> Path:
        return hub.fetch(self._id, name, self._listing)

    def has(self, name: str) -> bool:
        return name in self._listing.files

    def read_headers(self, names: Sequence[str], job: Job) -> Headers:
        headers: dict[str, Header] = {}
        files: dict[str, TensorFile] = {}
        remote = {}
        for name in names:
            path = hub.cached_file(self._id, name, self._listing.commit)
            if path is not None:
                files[name], headers[name] = LocalFile(path), read_header(path, name)
            else:
                files[name] = remote[name] = hub.RemoteFile(self._id, name, self._listing.commit)
        with ThreadPoolExecutor(PARALLEL) as pool:
            waiting = {pool.submit(f.read_header, name): name for name, f in remote.items()}
            try:
                for future in as_completed(waiting):
                    headers[waiting[future]] = future.result()
                    job.at(len(headers), len(names))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return [headers[name] for name in names], files


def open_hub(hub_id: hub.HubId, job: Job) -> ModelSource:
    """The model at the commit its revision means now. When the hub gives no listing of it,
    whatever the reason, what was fetched of it earlier is opened from the hub cache.

    Raises:
        ModelError: it is unknown, gated, unreachable, or cannot be opened.
    """
    try:
        listing = hub.list_files(hub_id)
    except ModelError:
        snapshot = hub.cached_snapshot(hub_id)
        if snapshot is None:
            raise
        return _open_snapshot(hub_id, snapshot, job)
    where, commit = f"the repository {quoted(hub_id)}", listing.commit
    place = Repository(hub_id, listing)
    config = read_config(place, listing.files)
    weights = choose_weights(list(listing.files), where)
    if weights.missing and config is None:
        raise ModelError(weights.missing)
    location = f"{hub.without_login(hub.endpoint())}/{hub_id.repo}/tree/{commit}"
    return open_at(
        place, weights, config, str(hub_id), "hub", location, where=where, commit=commit, job=job
    )


def _open_snapshot(hub_id: hub.HubId, snapshot: Path, job: Job) -> ModelSource:
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
