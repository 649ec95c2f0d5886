"""Adapters on a hub, with a local server."""

from __future__ import annotations

import numpy as np
import pytest
from adapter_models import lora, write_adapter
from hub_models import go_offline

from qtui_core.errors import ModelError
from qtui_core.models.files.arrays import read_float32
from qtui_core.models.opening import open_adapter

NAME = "base_model.model.q_proj.lora_A.weight"


@pytest.fixture
def with_adapter(hub, tmp_path):
    """The hub with `org/lora`, and the values of its lora_A."""
    parts = lora("q_proj", 6, 8)
    folder = write_adapter(tmp_path / "lora", parts)
    hub.repos["org/lora"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return parts["q_proj.lora_A.weight"]


def refusal(text: str) -> str:
    with pytest.raises(ModelError) as caught:
        open_adapter(text)
    return str(caught.value)


def test_an_adapter_of_a_hub_is_read_and_kept(with_adapter, monkeypatch):
    assert "org/other" in refusal("org/other")
    for offline in (False, True):
        if offline:
            go_offline(monkeypatch)
        found = open_adapter("org/lora")
        assert found.config["peft_type"] == "LORA"
        assert (found.weights.id, found.weights.origin) == ("org/lora", "hub")
        np.testing.assert_array_equal(read_float32(found.weights, NAME), with_adapter)
    assert "no folder of that name" in refusal("org/one")


def test_what_is_no_adapter_on_a_hub_is_refused(with_adapter, hub):
    assert "which --against compares" in refusal("org/one")
    del hub.repos["org/lora"]["adapter_model.safetensors"]
    hub.repos["org/lora"]["adapter_model.bin"] = b""
    assert "is a pickle" in refusal("org/lora")
    assert "hub cache" not in refusal("org/missing")
