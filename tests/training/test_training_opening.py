"""A run before it begins: what its request becomes on this machine. Without torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from live_runs import PREDICTED

from qtui.engine.run.prepared_run import (
    PreparedRun,
    prepare_run,
    takes_from_others,
    warning_on_host,
)
from qtui_core.errors import UsageError
from qtui_core.live.snapshot import RunDevice
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.machine import read_machine
from qtui_core.training.run.placement import Placement
from qtui_core.training.run.request import DEMO_NOTE, DEMO_TOKENS, NotBegun, RunRequest

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


def prepared(model: str, plan: RunPlan, **more: object) -> PreparedRun:
    opened = prepare_run(RunRequest(model, plan, 1, device="cpu", **more))
    opened.source.close()
    return opened


def test_a_usual_sequence_gives_way_to_learned_positions_and_is_short_for_the_demo(gpt2):
    """As in `qtui memory`: the user did not ask for 2,048 tokens."""
    for model, sequence, usual, tokens in (
        (gpt2, None, True, 64),
        (gpt2, 16, True, 16),
        ("demo", None, True, DEMO_TOKENS),
        ("demo", None, False, 2048),
        ("demo", 64, True, 64),
    ):
        chosen = {} if sequence is None else {"sequence": sequence}
        opened = prepared(model, RunPlan(method="lora", **chosen), usual=usual)
        assert opened.order.plan.sequence == opened.header.plan["sequence"] == tokens
        assert (DEMO_NOTE in opened.notes) == (tokens == DEMO_TOKENS)
    with pytest.raises(UsageError, match="learned 64 positions"):
        prepared(gpt2, RunPlan(method="lora"))


def test_a_class_that_predicts_no_tokens_learns_from_no_text(tmp_path):
    path = tmp_path / "config.json"
    for name in ("GPT2ForSequenceClassification", "GPT2Model", "GPT2ForReward"):
        path.write_text(json.dumps(GPT2 | {"architectures": [name]}))
        with pytest.raises(UsageError, match=f"names {name}, .*name a language model"):
            prepared(str(path), RunPlan(method="full", sequence=16))


@pytest.mark.parametrize(
    ("free", "limit", "warns"),
    [
        (30 << 30, None, False), (10 << 30, None, True), (30 << 30, 10 << 30, True),
        (None, None, False), (None, 30 << 30, False),
    ],
)  # fmt: skip
def test_a_machine_without_room_is_warned_of(gpt2, monkeypatch, free, limit, warns):
    """8 billion weights of 2 bytes lie there at once, and are 16 GB."""
    machine = replace(read_machine(), memory_available=free, memory_limit=limit)
    said = warning_on_host(5 << 30, 8_000_000_000, "bf16", machine)
    assert bool(said) == warns
    assert not said or "take 14.9 GiB" in said
    assert not said or "has 10 GiB free" in said
    # And it is told before the run.
    small = replace(machine, memory_available=1000, memory_limit=None)
    for found, told in ((machine, False), (small, True)):
        monkeypatch.setattr("qtui.engine.run.prepared_run.read_machine", lambda found=found: found)
        plan = RunPlan(method="lora", sequence=16)
        opened = prepared(gpt2, plan)
        assert bool(opened.header.predicted.warning) == told
        assert (opened.header.predicted.warning in opened.notes) == told
        # Other processes need the memory that is not free: it is taken only if that is wanted.
        if told:
            with pytest.raises(NotBegun, match=r"other processes need that memory\.") as refused:
                prepared(gpt2, plan, taking=False)
            assert refused.value.exit_code == 1
        else:
            prepared(gpt2, plan, taking=False)


@pytest.mark.parametrize(
    ("used", "shared", "warning", "takes"),
    [
        (0, False, "", False),
        (70, True, "will not fit", True),
        (70, True, "", False),  # no warning, no question
        (10, True, "is tight", False),
        (79, False, "will not fit", False),  # nobody else computes there: it may try
    ],
)
def test_a_run_takes_memory_from_others_only_if_there_are_others(used, shared, warning, takes):
    device = RunDevice("cuda", "a GPU", 0, 80 << 30)
    placement = Placement(device, "cuda:0", used_bytes=used << 30, shared=shared)
    predicted = replace(PREDICTED, process_bytes=20 << 30, warning=warning)
    assert takes_from_others(predicted, placement) is takes
