"""Faults of a hub, a network and a storage host; each gives one sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_hub import COMMIT, FakeHub
from hub_models import BIG, COLUMNS, SMALL, repository
from hub_models import says as sentence
from huggingface_hub import constants, hf_hub_download
from safetensors.numpy import save

from qtui_core.errors import ModelError
from qtui_core.models import hub as product
from qtui_core.models import open_model
from qtui_core.models.hub import parse_hub_id


def test_unknown_models(hub, tmp_path, monkeypatch):
    message = sentence("org/nothing", "knows no model 'org/nothing'")
    assert "no file or folder of that name either" in message
    sentence("nothing", "knows no model 'nothing'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "nothin").touch()
    sentence("org/nothing", r"On this machine there is 'org/nothin'\.$")


def test_ids_the_hub_could_not_have(hub):
    for text in ("org/na--me", "org/name..x", "org/x.git", "org/x-", "org./x"):
        sentence(text, "it is not a hub id")
    assert not hub.requests
    assert parse_hub_id("gpt2").repo == "gpt2"
    assert parse_hub_id("org/name@refs/pr/1").revision == "refs/pr/1"
    wrong = ("", "a/b/c", "/a", "a/", "a b", "a/b@", "-a/b", "a" * 97, "a/b@c d", "a\n", "a/b@x@y")
    assert [parse_hub_id(text) for text in wrong] == [None] * len(wrong)


def other(**attributes: Any) -> Callable[[FakeHub], None]:
    return lambda hub: vars(hub).update(attributes)


def to_itself(hub: FakeHub) -> None:
    hub.redirect_to = f"{hub.url}/org/one/resolve/{COMMIT}/model.safetensors"


def holding(**files: bytes) -> Callable[[FakeHub], None]:
    """org/one has other contents."""
    names = {"weights": "model.safetensors", "config": "config.json"}
    return lambda hub: hub.repos["org/one"].update({names[n]: b for n, b in files.items()})


def indexed(file: str) -> Callable[[FakeHub], None]:
    """org/one has shards, of which the index names another one."""
    index = json.dumps({"weight_map": {"big": file}}).encode()
    files = repository() | {"model.safetensors.index.json": index}
    return lambda hub: hub.repos.update({"org/one": files})


FETCHED = "Could not get 'org/one model.safetensors'"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other(gated=True), "is gated: ask for access"),
        (other(token="hf_right"), "rejects the login token"),
        (other(shift_range=8), "does not serve parts of files"),
        (other(sha=None), "which commit"),
        *((other(failures=[status] * 10), f"answered {status} when asked for 'org/one model")
          for status in (418, 404, 401)),
        *((other(redirect_to=target), FETCHED)
          for target in ("file:///etc/passwd", "http://[x/", "http://host:99999999/")),
        (to_itself, FETCHED),
        (holding(weights=b""), "is empty"),
        (holding(weights=b"abc"), "cut off"),
        (holding(weights=b"\xff" * 8), "not a safetensors file"),
        (holding(weights=save({"a": SMALL})[:-1]), "cut"),
        (holding(weights=b"version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
        (holding(config=b"[1, 2]"), "not a JSON object"),
        (indexed("../one/model.safetensors"), "outside the model's folder"),
        (indexed("http://host/x.safetensors"), "outside the model's folder"),
        (indexed("gone.safetensors"), "missing from the repository"),
    ],
)  # fmt: skip
def test_a_fault_of_the_hub_is_one_sentence_and_not_tried_again(hub, monkeypatch, change, says):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    change(hub)
    failures = len(hub.failures)
    sentence("org/one", says)
    assert len(hub.failures) == max(0, failures - 1)


def test_a_private_model_is_opened_with_its_token(hub, monkeypatch):
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert open_model("org/one").parameters == BIG.size + SMALL.size


def test_signed_addresses_that_expire_are_asked_for_again(hub):
    hub.expire_links = True
    source = open_model("org/one")
    for row in (3, 4, 5):
        assert source.read_rows("big", row, row + 1) == BIG[row].tobytes()


def test_a_reply_cut_short_is_continued(hub):
    source = open_model("org/one")
    hub.cut_to = [3, 0]
    assert open_model("org/one").parameters == BIG.size + SMALL.size
    before = hub.weight_bytes()
    hub.cut_to = [5000, 100]
    assert source.read_rows("big", 0, 20) == BIG[:20].tobytes()
    wanted = 20 * COLUMNS * 4
    # No byte is sent twice, except for the current piece, which requests discards when it is cut
    # off.
    assert wanted <= hub.weight_bytes() - before <= wanted + 5100


def test_a_server_that_does_not_answer_is_not_waited_for_long(hub, monkeypatch):
    # Long enough for an answer on a busy machine, and short enough to wait for one that never
    # comes.
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    hub.stalls = 1
    source = open_model("org/one")
    hub.stalls = 9
    with pytest.raises(ModelError, match="timed out"):
        source.read_rows("big", 0, 1)
    assert hub.stalls == 6


@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_failures_are_retried(hub, status):
    hub.failures = [status]
    assert open_model("org/one").read_rows("big", 0, 1) == BIG[0].tobytes()
    hub.failures = [status] * 10
    sentence("org/one", f"The hub answered {status} when asked for")
    assert len(hub.failures) == 7


def test_a_server_that_ignores_ranges(hub):
    hub.ignore_range = True
    source = open_model("org/one")  # the beginning of a whole reply is a beginning
    assert source.parameters == BIG.size + SMALL.size
    with pytest.raises(ModelError, match="does not serve parts of files"):
        source.read_rows("big", 1, 2)


def test_a_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    sentence("org/one", "The hub cache cannot be used")


@pytest.mark.parametrize("where", ["/api/models/", "/config.json"])
def test_a_byte_at_a_time_is_not_waited_for(hub, monkeypatch, where):
    def slow(handler):
        handler.send_response(200)
        for name, value in (("X-Repo-Commit", COMMIT), ("ETag", '"a"'), ("Content-Length", "200")):
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    monkeypatch.setattr(product, "PATIENCE_SECONDS", 0.3)
    hub.instead[where] = slow
    begun = time.monotonic()
    sentence("org/one", "too slow to wait for; try again later")
    assert time.monotonic() - begun < 8


def test_a_configuration_that_is_too_long_is_not_read(hub, monkeypatch):
    monkeypatch.setattr(product.fetch, "__defaults__", (20,))
    sentence("org/one", "has 59 bytes; no such file is that long")
    assert not any("config.json" in request.path for request in hub.requests)


def test_huggingface_hub_finds_what_was_fetched(hub):
    open_model("org/one")
    assert Path(hf_hub_download("org/one", "config.json", local_files_only=True)).is_file()


def test_a_password_in_the_address_is_not_shown(hub, monkeypatch):
    login = hub.url.replace("http://", "http://user:secret@")
    monkeypatch.setattr(constants, "ENDPOINT", login)
    assert "secret" not in str(open_model("org/one").location)
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:secret@127.0.0.1:9")
    assert "secret" not in sentence("org/other", "from http://127.0.0.1:9")
    monkeypatch.setattr(constants, "ENDPOINT", "ftp://user:secret@host")
    assert "secret" not in sentence("org/other", "from ftp://host ")
    for address in ("user:secret@host", "user:a/secret@host", "http:/user:secret@host"):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert "secret" not in sentence("org/other", "from host ")
