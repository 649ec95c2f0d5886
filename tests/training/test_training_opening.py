"""A run before it begins: what the request comes to on this machine. Without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qtui.engine.run_opening import open_run
from qtui_core.errors import UsageError
from qtui_core.memory.plan import RunPlan
from qtui_core.training.request import RunRequest

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 2,
    "n_layer": 2, "n_positions": 64, "vocab_size": 256, "tie_word_embeddings": True,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture
def gpt2(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    return str(path)


def test_a_usual_sequence_gives_way_to_learned_positions(gpt2: str) -> None:
    """As in `qtui memory`: nobody asked for 2,048 tokens."""
    request = RunRequest(gpt2, RunPlan(method="lora"), 1, device="cpu", usual=True)
    opened = open_run(request)
    opened.source.close()
    assert opened.header.plan["sequence"] == opened.order.plan.sequence == 64
    short = RunRequest(gpt2, RunPlan(method="lora", sequence=16), 1, device="cpu", usual=True)
    opened = open_run(short)
    opened.source.close()
    assert opened.order.plan.sequence == 16


def test_a_sequence_that_was_asked_for_does_not(gpt2: str) -> None:
    request = RunRequest(gpt2, RunPlan(method="lora"), 1, device="cpu")
    with pytest.raises(UsageError, match="learned 64 positions"):
        open_run(request)
