"""Engines for tests of their answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from engine_model import values
from safetensors.numpy import save_file

from qtui.engine.client import EngineClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    """One engine and event loop for all tests of a file. Each request names its model, as in the
    app, whose engine lives as long as the app."""
    client = EngineClient()
    yield client
    await client.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a checkpoint with the tensors of engine_model.py."""
    folder = tmp_path_factory.mktemp("model")
    save_file(values(), folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
