"""Models on a hub, with a local server that counts the bytes it sends."""

import socket

import numpy as np
import pytest
from fake_hub import COMMIT
from hub_models import (
    BIG,
    COLUMNS,
    CONFIG,
    FIRST,
    ROWS,
    SECOND,
    SMALL,
    go_offline,
    repository,
    says,
)
from huggingface_hub import constants, hf_hub_download
from safetensors.numpy import save

from qtui_core.errors import ModelError
from qtui_core.job import Job
from qtui_core.models import hub as product
from qtui_core.models import open_model
from qtui_core.models.files.arrays import read_float32


def test_only_the_needed_rows_are_transferred(hub):
    with open_model("org/one") as source:
        assert (source.id, source.origin, source.commit) == ("org/one", "hub", COMMIT)
        assert source.location == f"{hub.url}/org/one/tree/{COMMIT}"
        assert source.architecture == "LlamaForCausalLM"
        assert source.parameters == BIG.size + SMALL.size
        assert hub.weight_bytes() <= product.FIRST_REQUEST
        header = hub.weight_bytes()
        np.testing.assert_array_equal(read_float32(source, "big", 700, 710), BIG[700:710])
        assert hub.weight_bytes() - header == 10 * COLUMNS * 4
        assert source.read_rows("small", 1, 3) == SMALL[1:3].tobytes()
        assert hub.weight_bytes() - header == 10 * COLUMNS * 4 + 4
        assert source.read_rows("big", 5, 5) == b""
    ranges = [r.range for r in hub.of("storage")]
    assert ranges[0] == f"bytes=0-{product.FIRST_REQUEST - 1}"
    assert all(r is not None for r in ranges)
    # One redirect; after it the storage address is used directly.
    assert len([r for r in hub.of("hub") if "resolve" in r.path and "safetensors" in r.path]) == 1


def test_a_header_longer_than_the_first_request(hub):
    tensors = {f"layers.{i}.{'x' * 50}": SMALL for i in range(3000)}
    hub.repos["org/long"] = {"model.safetensors": save(tensors)}
    source = open_model("org/long")
    assert len(source.tensors) == 3000
    assert source.config is None
    ranges = hub.of("storage")
    length = int.from_bytes(hub.repos["org/long"]["model.safetensors"][:8], "little")
    assert len(ranges) == 2
    assert sum(r.served for r in ranges) == 8 + length
    assert source.read_rows("layers.2999." + "x" * 50, 0, 4) == SMALL.tobytes()


def test_shards(hub):
    progress = []
    source = open_model("org/two", job=Job(lambda *p: progress.append(p[:2])))
    assert {n: t.file for n, t in source.tensors.items()} == {"big": FIRST, "small": SECOND}
    assert source.read_rows("big", 999, 1000) == BIG[999:].tobytes()
    assert source.read_rows("small", 0, 4) == SMALL.tobytes()
    assert progress == [(1, 2), (2, 2)]
    assert hub.weight_bytes() < product.FIRST_REQUEST * 2 + COLUMNS * 4 + 8


def test_revisions(hub):
    source = open_model("org/one@v1")
    assert (source.id, source.commit) == ("org/one@v1", COMMIT)
    assert open_model(f"org/one@{COMMIT}").parameters == source.parameters
    assert says("org/one@v2", "no such revision") == (
        "'org/one' is on the hub, but has no such revision: 'org/one@v2'."
    )


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    open_model("org/one").read_rows("big", 0, 1)
    resolved = [r for r in hub.of("hub") if "safetensors" in r.path]
    assert resolved
    assert all(r.authorization == "Bearer hf_secret" for r in resolved)
    assert hub.of("storage")
    assert all(r.authorization is None for r in hub.of("storage"))
    assert all(r.range for r in [*resolved, *hub.of("storage")])


def test_a_repository_without_weights(hub):
    hub.repos["org/pickle"] = {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x02."}
    source = open_model("org/pickle")
    assert source.config["hidden_size"] == 300
    with pytest.raises(ModelError, match="runs code from the file"):
        source.require_weights()
    assert not any("pytorch_model" in r.path for r in hub.requests)
    hub.repos["org/nothing"] = {"README.md": b"x"}
    says("org/nothing", "no weights")


def test_cached_files_are_not_requested(hub):
    hf_hub_download("org/two", FIRST)
    hub.requests.clear()
    with open_model("org/two") as source:
        assert source.read_rows("big", 0, ROWS) == BIG.tobytes()
        assert not any(FIRST in r.path for r in hub.requests)
        assert source.read_rows("small", 0, 1) == SMALL[:1].tobytes()


def test_configs_are_kept_for_when_there_is_no_network(hub, monkeypatch):
    open_model("org/two")
    go_offline(monkeypatch)
    hub.requests.clear()
    source = open_model("org/two")
    assert source.config["hidden_size"] == 300
    assert (source.origin, source.commit) == ("hub", COMMIT)
    with pytest.raises(ModelError, match="not its weights"):
        source.require_weights()
    assert not hub.requests


def test_everything_works_from_the_cache(hub, monkeypatch):
    for name in repository():
        hf_hub_download("org/two", name)
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
    with open_model("org/two") as source:
        assert source.read_rows("big", 5, 6) == BIG[5].tobytes()
        assert COMMIT in source.location
    says("org/two@v1", "Could not get 'org/two@v1'")
    closed.close()


def test_reading_after_the_network_is_gone(hub, monkeypatch):
    source = open_model("org/one")
    go_offline(monkeypatch)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE forbids"):
        source.read_rows("big", 0, 1)
