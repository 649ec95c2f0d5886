"""A run before it begins: what its request becomes on this machine. Without torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from live_runs import PREDICTED

from qtui.engine.run.prepared_run import prepare_run, takes_from_others, warning_on_host
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


def test_a_usual_sequence_gives_way_to_learned_positions(gpt2):
    """As in `qtui memory`: the user did not ask for 2,048 tokens."""
    request = RunRequest(gpt2, RunPlan(method="lora"), 1, device="cpu", usual=True)
    opened = prepare_run(request)
    opened.source.close()
    assert opened.header.plan["sequence"] == opened.order.plan.sequence == 64
    short = RunRequest(gpt2, RunPlan(method="lora", sequence=16), 1, device="cpu", usual=True)
    opened = prepare_run(short)
    opened.source.close()
    assert opened.order.plan.sequence == 16


def test_a_sequence_that_was_asked_for_does_not(gpt2):
    request = RunRequest(gpt2, RunPlan(method="lora"), 1, device="cpu")
    with pytest.raises(UsageError, match="learned 64 positions"):
        prepare_run(request)


def test_a_class_that_predicts_no_tokens_learns_from_no_text(tmp_path):
    path = tmp_path / "config.json"
    for name in ("GPT2ForSequenceClassification", "GPT2Model", "GPT2ForReward"):
        path.write_text(json.dumps(GPT2 | {"architectures": [name]}))
        request = RunRequest(str(path), RunPlan(method="full", sequence=16), 1, device="cpu")
        with pytest.raises(UsageError, match=f"names {name}, .*name a language model"):
            prepare_run(request)


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
        request = RunRequest(gpt2, RunPlan(method="lora", sequence=16), 1, device="cpu")
        opened = prepare_run(request)
        opened.source.close()
        assert bool(opened.header.predicted.warning) == told
        assert (opened.header.predicted.warning in opened.notes) == told
        # Other processes need the memory that is not free: it is taken only if that is wanted.
        if told:
            with pytest.raises(NotBegun, match=r"other processes need that memory\.") as refused:
                prepare_run(replace(request, taking=False))
            assert refused.value.exit_code == 1
        else:
            prepare_run(replace(request, taking=False)).source.close()


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


def test_the_demo_on_a_cpu_takes_short_sequences_unless_a_length_is_chosen():
    for plan, usual, tokens in (
        (RunPlan(method="lora"), True, DEMO_TOKENS),
        (RunPlan(method="lora"), False, 2048),
        (RunPlan(method="lora", sequence=64), True, 64),
    ):
        opened = prepare_run(RunRequest("demo", plan, 1, device="cpu", usual=usual))
        opened.source.close()
        assert opened.order.plan.sequence == opened.header.plan["sequence"] == tokens
        assert (DEMO_NOTE in opened.notes) == (tokens == DEMO_TOKENS)
