"""`qtui inspect org/name` against a local server that plays the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_hub import FakeHub, serve
from safetensors.numpy import save

ROWS, COLUMNS = 4096, 512
WEIGHTS = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serve() as server:
        server.repos["org/model"] = {
            "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
            "model.safetensors": save(
                {f"layers.{i}.weight": WEIGHTS + np.float32(i) for i in range(6)}
            ),
        }
        yield server


@pytest.fixture
def env(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "",
    }


def test_only_the_sampled_rows_travel(qtui_process, hub, env):
    done = qtui_process("inspect", "org/model", "--schemes", "int8,nf4", "--json", env=env)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["model"]["source"] == "hub"
    assert [t["sampled_parameters"] for t in data["tensors"]] == [1 << 17] * 6
    sampled_bytes = 6 * (1 << 17) * 4
    assert sampled_bytes <= hub.weight_bytes() <= sampled_bytes + 200_000
    # Four strips of 64 rows, the first at the first row and the last at the last.
    rows = [r for start in (0, 1344, 2688, 4032) for r in range(start, start + 64)]
    assert data["tensors"][0]["statistics"]["absmax"] == np.abs(WEIGHTS[rows]).max()


def test_headers_alone_move_almost_nothing(qtui_process, hub, env):
    done = qtui_process("inspect", "org/model", "--headers", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["parameters"] == 6 * ROWS * COLUMNS
    assert hub.weight_bytes() <= 1 << 16


def test_unknown_gated_and_offline_are_sentences(qtui_process, hub, env):
    unknown = qtui_process("inspect", "org/nothing", env=env)
    hub.gated = True
    gated = qtui_process("inspect", "org/model", env=env)
    offline = qtui_process("inspect", "org/model", env={**env, "HF_HUB_OFFLINE": "1"})
    for done, words in ((unknown, "org/nothing"), (gated, "access"), (offline, "offline")):
        assert (done.returncode, done.stdout) == (3, "")
        assert words in done.stderr.lower()
        assert "Traceback" not in done.stderr
