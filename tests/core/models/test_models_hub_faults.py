"""Faults of a hub, a network and a storage host; each gives one sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fake_hub import COMMIT
from hub_models import BIG, COLUMNS, CONFIG, SMALL, repository, says
from huggingface_hub import constants, hf_hub_download
from safetensors.numpy import save

from qtui_core.errors import ModelError
from qtui_core.models import hub as product
from qtui_core.models import open_model
from qtui_core.models.hub import parse_hub_id


def test_unknown_models(hub, tmp_path, monkeypatch):
    message = says("org/nothing", "knows no model 'org/nothing'")
    assert "no file or folder of that name either" in message
    says("nothing", "knows no model 'nothing'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "nothin").touch()
    says("org/nothing", r"On this machine there is 'org/nothin'\.$")


def test_ids_the_hub_could_not_have(hub):
    for text in ("org/na--me", "org/name..x", "org/x.git", "org/x-", "org./x"):
        says(text, "it is not a hub id")
    assert not hub.requests
    assert parse_hub_id("gpt2").repo == "gpt2"
    assert parse_hub_id("org/name@refs/pr/1").revision == "refs/pr/1"
    wrong = ("", "a/b/c", "/a", "a/", "a b", "a/b@", "-a/b", "a" * 97, "a/b@c d", "a\n", "a/b@x@y")
    assert [parse_hub_id(text) for text in wrong] == [None] * len(wrong)


def test_gated_and_private(hub, monkeypatch):
    hub.gated = True
    says("org/one", "is gated: ask for access")
    hub.gated = False
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    says("org/one", "rejects the login token")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert open_model("org/one").parameters == BIG.size + SMALL.size


def test_weights_alone_may_be_gated(hub):
    source = open_model("org/one")
    hub.gated = True
    hub.expire_links = True
    with pytest.raises(ModelError, match=r"'org/one model\.safetensors' is gated"):
        source.read_rows("big", 0, 1)


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


def test_a_reply_cut_short_every_time(hub):
    source = open_model("org/one")
    hub.cut_to = [10] * 20
    before = len(hub.requests)
    with pytest.raises(ModelError, match=r"Could not get 'org/one model\.safetensors'"):
        source.read_rows("big", 0, 20)
    assert len(hub.requests) - before == 3


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
    says("org/one", f"The hub answered {status} when asked for")
    assert len(hub.failures) == 7


def test_final_failures_are_not_retried(hub):
    for status in (418, 404, 401):
        hub.failures = [status] * 10
        says("org/one", f"answered {status} when asked for 'org/one model.safetensors'")
        assert len(hub.failures) == 9


def test_a_server_that_ignores_ranges(hub):
    hub.ignore_range = True
    source = open_model("org/one")  # the beginning of a whole reply is a beginning
    assert source.parameters == BIG.size + SMALL.size
    with pytest.raises(ModelError, match="does not serve parts of files"):
        source.read_rows("big", 1, 2)


def test_a_server_that_sends_other_bytes(hub):
    hub.shift_range = 8
    says("org/one", "does not serve parts of files")


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "http://[x/", "http://host:99999999/", ""]
)
def test_redirects_to_nowhere(hub, target):
    hub.redirect_to = target or f"{hub.url}/org/one/resolve/{COMMIT}/model.safetensors"
    says("org/one", "Could not get 'org/one model.safetensors'")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"abc", "cut off"),
        (b"\xff" * 8, "not a safetensors file"),
        (save({"a": SMALL})[:-1], "cut"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_broken_files_on_the_hub(hub, content, match):
    hub.repos["org/broken"] = {"config.json": CONFIG, "model.safetensors": content}
    says("org/broken", match)


def test_an_index_on_the_hub_is_not_trusted_either(hub):
    for repo, file, match in (
        ("a", "../one/model.safetensors", "outside the model's folder"),
        ("b", "http://host/x.safetensors", "outside the model's folder"),
        ("c", "gone.safetensors", "missing from the repository"),
    ):
        index = json.dumps({"weight_map": {"big": file}}).encode()
        hub.repos[repo] = repository() | {"model.safetensors.index.json": index}
        says(repo, match)


def test_a_config_on_the_hub_that_is_not_an_object(hub):
    hub.repos["org/one"]["config.json"] = b"[1, 2]"
    says("org/one", "not a JSON object")


def test_a_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    says("org/one", "The hub cache cannot be used")


def test_a_listing_that_makes_no_sense(hub, monkeypatch):
    hub.sha = None
    says("org/one", "which commit")


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
    says("org/one", "too slow to wait for; try again later")
    assert time.monotonic() - begun < 8


def test_a_configuration_that_is_too_long_is_not_read(hub, monkeypatch):
    monkeypatch.setattr(product.fetch, "__defaults__", (20,))
    says("org/one", "has 59 bytes; no such file is that long")
    assert not any("config.json" in request.path for request in hub.requests)


def test_huggingface_hub_finds_what_was_fetched(hub):
    open_model("org/one")
    assert Path(hf_hub_download("org/one", "config.json", local_files_only=True)).is_file()


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
