"""Models on a hub: a local server plays it, counts what travels, and fails on request."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_hub import COMMIT, FakeHub, serve
from huggingface_hub import constants, file_download, hf_hub_download, utils
from safetensors.numpy import save

from qtui_core.errors import ModelError
from qtui_core.models import open_model, remote
from qtui_core.models.arrays import read_float32
from qtui_core.models.hub import parse_hub_id

ROWS, COLUMNS = 1000, 300
BIG = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
SMALL = np.arange(4, dtype=np.float16)
CONFIG = b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 300}'
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def repository() -> dict[str, bytes]:
    index = {"weight_map": {"big": FIRST, "small": SECOND}}
    return {
        "config.json": CONFIG,
        "README.md": b"# model",
        FIRST: save({"big": BIG}),
        SECOND: save({"small": SMALL}),
        "model.safetensors.index.json": json.dumps(index).encode(),
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with `org/one` (one file) and `org/two` (shards), huggingface_hub pointed at it."""
    monkeypatch.setattr(remote, "RETRY_WAITS", (0.01, 0.01))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serve() as server:
        server.repos["org/one"] = {
            "config.json": CONFIG,
            "model.safetensors": save({"big": BIG, "small": SMALL}),
        }
        server.repos["org/two"] = repository()
        point_at(server.url, tmp_path / "cache", monkeypatch)
        yield server


def point_at(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    # Before huggingface_hub 1.0 an open session keeps the mode it began with.
    getattr(utils, "reset_sessions", lambda: None)()


def open_and_read(text: str) -> None:
    source = open_model(text)
    for info in source.tensors.values():
        source.read_rows(info.name, 0, 1)


def says(text: str, match: str) -> str:
    """The sentence that opening this model, or reading of it, ends with."""
    with pytest.raises(ModelError, match=match) as caught:
        open_and_read(text)
    message = str(caught.value)
    assert message.isprintable()
    assert message.endswith(".")
    assert len(message) < 500
    return message


def test_only_the_needed_rows_travel(hub):
    with open_model("org/one") as source:
        assert (source.id, source.origin, source.commit) == ("org/one", "hub", COMMIT)
        assert source.location == f"{hub.url}/org/one/tree/{COMMIT}"
        assert source.architecture == "LlamaForCausalLM"
        assert source.parameters == BIG.size + SMALL.size
        assert hub.weight_bytes() <= remote.FIRST_REQUEST
        header = hub.weight_bytes()
        np.testing.assert_array_equal(read_float32(source, "big", 700, 710), BIG[700:710])
        assert hub.weight_bytes() - header == 10 * COLUMNS * 4
        assert source.read_rows("small", 1, 3) == SMALL[1:3].tobytes()
        assert hub.weight_bytes() - header == 10 * COLUMNS * 4 + 4
        assert source.read_rows("big", 5, 5) == b""
    ranges = [r.range for r in hub.of("storage")]
    assert ranges[0] == f"bytes=0-{remote.FIRST_REQUEST - 1}"
    assert all(r is not None for r in ranges)
    # One redirect; after it the storage address is used directly.
    assert len([r for r in hub.of("hub") if "resolve" in r.path and "safetensors" in r.path]) == 1


def test_reads_share_a_connection(hub):
    source = open_model("org/one")
    for row in range(5):
        source.read_rows("big", row, row + 1)
    reads = hub.of("storage")[1:]  # the header came first, perhaps in another thread
    assert len({r.connection for r in reads}) == 1


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
    source = open_model("org/two", progress=lambda *p: progress.append(p))
    assert {n: t.file for n, t in source.tensors.items()} == {"big": FIRST, "small": SECOND}
    assert source.read_rows("big", 999, 1000) == BIG[999:].tobytes()
    assert source.read_rows("small", 0, 4) == SMALL.tobytes()
    assert progress == [(1, 2), (2, 2)]
    assert hub.weight_bytes() < remote.FIRST_REQUEST * 2 + COLUMNS * 4 + 8


def test_revisions(hub):
    source = open_model("org/one@v1")
    assert (source.id, source.commit) == ("org/one@v1", COMMIT)
    assert open_model(f"org/one@{COMMIT}").parameters == source.parameters
    assert says("org/one@v2", "no such revision") == (
        "'org/one' is on the hub, but has no such revision: 'org/one@v2'."
    )


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
    for text in (
        "",
        "a/b/c",
        "/a",
        "a/",
        "a b",
        "a/b@",
        "-a/b",
        "a" * 97,
        "a/b@c d",
        "a\n",
        "a/b@x@y",
    ):
        assert parse_hub_id(text) is None


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


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    open_model("org/one").read_rows("big", 0, 1)
    resolved = [r for r in hub.of("hub") if "safetensors" in r.path]
    assert resolved
    assert all(r.authorization == "Bearer hf_secret" for r in resolved)
    assert hub.of("storage")
    assert all(r.authorization is None for r in hub.of("storage"))
    assert all(r.range for r in [*resolved, *hub.of("storage")])


def test_signed_addresses_that_expire_are_asked_for_again(hub):
    hub.expire_links = True
    source = open_model("org/one")
    for row in (3, 4, 5):
        assert source.read_rows("big", row, row + 1) == BIG[row].tobytes()


def test_a_reply_cut_short_is_continued(hub):
    source = open_model("org/one")
    before = hub.weight_bytes()
    hub.cut_to = [5000, 100]
    assert source.read_rows("big", 0, 20) == BIG[:20].tobytes()
    wanted = 20 * COLUMNS * 4
    # Nothing travels twice, but for the piece in hand that requests drops when cut off.
    assert wanted <= hub.weight_bytes() - before <= wanted + 5100


def test_a_reply_cut_short_every_time(hub):
    source = open_model("org/one")
    hub.cut_to = [10] * 20
    before = len(hub.requests)
    with pytest.raises(ModelError, match=r"Could not get 'org/one model\.safetensors'"):
        source.read_rows("big", 0, 20)
    assert len(hub.requests) - before == 3


def test_a_header_cut_short_is_continued(hub):
    hub.cut_to = [3, 0]
    assert open_model("org/one").parameters == BIG.size + SMALL.size


def test_a_server_that_says_nothing_is_not_waited_for_long(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    hub.stalls = 1
    source = open_model("org/one")
    hub.stalls = 9
    with pytest.raises(ModelError, match="timed out"):
        source.read_rows("big", 0, 1)
    assert hub.stalls == 6


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_tried_again(hub, status):
    hub.failures = [status]
    assert open_model("org/one").read_rows("big", 0, 1) == BIG[0].tobytes()
    hub.failures = [status] * 10
    message = says("org/one", f"answered {status}")
    assert len(hub.failures) == 7
    assert message.startswith("Could not get")


def test_final_failures_are_not(hub):
    for status in (418, 404, 401):
        hub.failures = [status] * 10
        says("org/one", f"keeps 'org/one model.safetensors' for the hub answered {status}")
        assert len(hub.failures) == 9


def test_a_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    says("org/one", "The hub cache cannot be used")


def test_a_server_that_ignores_ranges(hub):
    hub.ignore_range = True
    source = open_model("org/one")  # the beginning of a whole reply is a beginning
    assert source.parameters == BIG.size + SMALL.size
    with pytest.raises(ModelError, match="does not serve parts of files"):
        source.read_rows("big", 1, 2)


def test_a_server_that_ignores_ranges_is_not_downloaded_from(hub, monkeypatch):
    # 64 MiB offered; the connection is dropped after what was needed.
    hub.repos["org/huge"] = {"model.safetensors": save({"w": np.zeros(1 << 26, np.uint8)})}
    hub.ignore_range = True
    taken = 0
    receive = remote._Transfer.receive

    def counting(self, status, headers, chunks):
        def count():
            nonlocal taken
            for chunk in chunks:
                taken += len(chunk)
                yield chunk

        receive(self, status, headers, count())

    monkeypatch.setattr(remote._Transfer, "receive", counting)
    assert open_model("org/huge").parameters == 1 << 26
    assert 0 < taken < 1 << 20


def test_a_server_that_sends_other_bytes(hub):
    hub.shift_range = 8
    says("org/one", "other bytes than asked for")


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("file:///etc/passwd", "redirects to 'file:///etc/passwd'"),
        ("http://[x/", "redirects to|Invalid IPv6"),
        ("http://host:99999999/", "redirects to"),
        ("", "in circles"),
    ],
)
def test_redirects_to_nowhere(hub, target, match):
    hub.redirect_to = target or f"{hub.url}/org/one/resolve/{COMMIT}/model.safetensors"
    says("org/one", match)


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


def test_an_index_on_the_hub_is_no_more_trusted(hub):
    for repo, file, match in (
        ("a", "../one/model.safetensors", "outside the model's folder"),
        ("b", "http://host/x.safetensors", "outside the model's folder"),
        ("c", "gone.safetensors", "missing from the repository"),
    ):
        index = json.dumps({"weight_map": {"big": file}}).encode()
        hub.repos[repo] = repository() | {"model.safetensors.index.json": index}
        says(repo, match)


def test_a_repository_without_weights(hub):
    hub.repos["org/pickle"] = {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x02."}
    source = open_model("org/pickle")
    assert source.config["hidden_size"] == 300
    with pytest.raises(ModelError, match="runs code from the file"):
        source.require_weights()
    assert not any("pytorch_model" in r.path for r in hub.requests)
    hub.repos["org/nothing"] = {"README.md": b"x"}
    says("org/nothing", "no weights")


def test_a_config_on_the_hub_that_is_none(hub):
    hub.repos["org/one"]["config.json"] = b"[1, 2]"
    says("org/one", "not a JSON object")


def test_what_the_cache_holds_is_not_asked_for(hub):
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


def test_a_snapshot_with_some_of_the_shards(hub, monkeypatch):
    for name in ("config.json", "model.safetensors.index.json", FIRST):
        hf_hub_download("org/two", name)
    go_offline(monkeypatch)
    source = open_model("org/two")
    assert not source.tensors
    with pytest.raises(ModelError, match="not its weights"):
        source.require_weights()


def test_reading_after_the_network_is_gone(hub, monkeypatch):
    source = open_model("org/one")
    go_offline(monkeypatch)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE forbids"):
        source.read_rows("big", 0, 1)


def test_a_listing_that_makes_no_sense(hub, monkeypatch):
    hub.sha = None
    says("org/one", "which commit")


@pytest.fixture
def run(tmp_path: Path):
    """Opens models in a process of its own, configured by environment variables alone."""

    def run_program(text: str, **settings: str) -> tuple[int, str, str]:
        program = (
            "import sys\n"
            "from qtui_core.errors import ModelError\n"
            "from qtui_core.models import open_model\n"
            "try:\n"
            "    source = open_model(sys.argv[1])\n"
            "    print(source.parameters, bytes(source.read_rows('small', 0, 4)).hex())\n"
            "except ModelError as error:\n"
            "    sys.exit(str(error))\n"
        )
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path / "home"), **settings}
        done = subprocess.run(
            [sys.executable, "-c", program, text],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    return run_program


def test_configured_by_environment(hub, run):
    hub.token = "hf_abc"
    expected = f"{BIG.size + SMALL.size} {SMALL.tobytes().hex()}\n"
    done = run("org/two", HF_ENDPOINT=hub.url, HF_TOKEN="hf_abc")
    assert done == (0, expected, "")  # and no progress bar, no log line


def test_offline_by_environment(hub, run):
    code, out, err = run("org/two", HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert (code, out) == (1, "")
    assert err.startswith("'org/two' is not in the hub cache, and HF_HUB_OFFLINE forbids")
    assert not hub.requests


def test_no_network(run):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        code, out, err = run("org/two", HF_ENDPOINT=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert (code, out) == (1, "")
    assert err.startswith("Could not get 'org/two' from http://127.0.0.1")
    assert "Connection refused" in err
    assert "Traceback" not in err
