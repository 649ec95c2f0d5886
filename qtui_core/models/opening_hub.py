"""Models on the hub, and what its cache holds of them when it cannot be asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.models import hub
from qtui_core.models.assemble import (
    FoundWeights,
    Progress,
    assemble,
    check_complete,
    find_weights,
    read_config,
)
from qtui_core.models.files.layout import CONFIG, QUANT_CONFIG, choose_weights
from qtui_core.models.files.links import followed
from qtui_core.models.files.local import LocalFile, read_header, read_text_file
from qtui_core.models.files.safetensors import Header
from qtui_core.models.opening_local import config_in, list_folder, read_headers
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource, TensorFile

#: Requests in flight; a large model has more than a hundred files.
PARALLEL = 8


def open_hub(hub_id: hub.HubId, progress: Progress | None) -> ModelSource:
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
        return _open_snapshot(hub_id, snapshot, progress)
    where = f"the repository {quoted(hub_id)}"
    config = None
    if CONFIG in listing.files:
        named = (name for name in (CONFIG, QUANT_CONFIG) if name in listing.files)
        config = read_config(*(hub.fetch(hub_id, name, listing) for name in named))
    chosen = choose_weights(list(listing.files), where)
    if chosen.missing and config is None:
        raise ModelError(chosen.missing)
    weights = find_weights(chosen, lambda n: read_text_file(hub.fetch(hub_id, n, listing)))
    check_complete(weights, listing.files.__contains__, where)
    weights = _read_headers(weights, hub_id, listing.commit, progress)
    return assemble(
        name=str(hub_id),
        origin="hub",
        location=f"{hub.without_login(hub.endpoint())}/{hub_id.repo}/tree/{listing.commit}",
        config=config,
        weights=weights,
        commit=listing.commit,
    )


def _open_snapshot(hub_id: hub.HubId, snapshot: Path, progress: Progress | None) -> ModelSource:
    names = list_folder(snapshot)
    config = config_in(snapshot) if CONFIG in names else None
    chosen = choose_weights(names, f"the hub cache of {quoted(hub_id)}", snapshot)
    weights = find_weights(chosen, lambda n: read_text_file(followed(snapshot, n)))
    if weights.missing or not all((snapshot / n).is_file() for n in weights.names):
        # Usual after headers were read by range: the description was kept, the weights not.
        weights = FoundWeights(
            missing=f"The hub cache holds the description of {quoted(hub_id)} but not its "
            f"weights, and the hub cannot be asked now.",
        )
    weights = read_headers(weights, snapshot, progress)
    return assemble(
        name=str(hub_id),
        origin="hub",
        location=snapshot,
        config=config,
        weights=weights,
        commit=snapshot.name,
    )


def _read_headers(
    weights: FoundWeights, hub_id: hub.HubId, commit: str, progress: Progress | None
) -> FoundWeights:
    """The same weights with the headers and readers of their files: in the hub cache where
    it holds a file, else on the hub, by range."""
    headers: dict[str, Header] = {}
    files: dict[str, TensorFile] = {}
    remote = {}
    for name in weights.names:
        path = hub.cached_file(hub_id, name, commit)
        if path is not None:
            files[name], headers[name] = LocalFile(path), read_header(path, name)
        else:
            files[name] = remote[name] = hub.RemoteFile(hub_id, name, commit)
    with ThreadPoolExecutor(PARALLEL) as pool:
        waiting = {pool.submit(f.read_header, name): name for name, f in remote.items()}
        try:
            for future in as_completed(waiting):
                headers[waiting[future]] = future.result()
                if progress:
                    progress(len(headers), len(weights.names))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return replace(weights, headers=tuple(headers[n] for n in weights.names), files=files)
