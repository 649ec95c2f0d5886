"""Runs on the CPU: of the demo model with its weights, and of small models with random weights."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest
from lazy_imports import LazyImport
from training_runs import conducted, configured

from qtui_core.live.snapshot import AdaptersCompared, LogMessage, PhaseBegun, PhaseEnded, StepTaken

torch = LazyImport("torch")


pytestmark = pytest.mark.slow

STEP = ["forward", "loss", "backward", "optimizer", "between steps"]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["qlora", "full"])
def test_the_loss_of_the_demo_falls_in_twenty_steps(method):
    ran = conducted("demo", {"method": method, "batch": 2, "sequence": 128}, 20)
    assert ran.code == 0
    losses = ran.losses
    assert len(losses) == 20
    assert mean(losses[-5:]) < 0.85 * mean(losses[:5])
    # Phases begin in the same order in every step, and each ends where the next begins.
    steps = [ran.phases[i : i + 5] for i in range(len(ran.phases) - 100, len(ran.phases), 5)]
    assert steps == [[(n, phase) for phase in STEP] for n in range(1, 21)]
    begun, ended = ran.of(PhaseBegun), ran.of(PhaseEnded)
    # The import was reported by the process that started the run.
    assert [("import", 0), *((b.phase, b.step) for b in begun)] == [
        (e.phase, e.step) for e in ended
    ]
    # All steps hold the same bytes at each mark, except the first, which has no states before.
    for phase in STEP:
        assert len({ran.ended(phase, n).peak_allocated_bytes for n in (2, 9, 20)}) == 1
    assert ran.ended("between steps", 1).allocated_bytes == (
        ran.ended("between steps", 20).allocated_bytes
    )


def test_what_is_not_trained_stays_and_what_is_trained_changes(tmp_path):
    plan = {"method": "qlora", "batch": 2, "sequence": 64}
    ran = conducted("demo", plan, 3, text="The weights lie in memory")
    before, after = ran.of(AdaptersCompared)
    # Adapters begin as zero: on or off, the logits equal those of the base to the bit.
    assert (before.step, before.largest_difference, before.reference_difference) == (0, 0.0, 0.0)
    assert before.on == before.off
    assert after.step == 3
    assert after.largest_difference > 0.01
    assert after.reference_difference == 0.0
    assert after.off == before.off
    assert sum(share for _, share in after.on) <= 1.0
    assert len({token for token, _ in after.on}) == 5


FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 160, "n_positions": 64},
    "bert": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    "mixtral": {"num_local_experts": 4},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["qlora", "full"])
def test_families_run(tmp_path, family, method):
    model = configured(tmp_path, model_type=family, **FAMILIES[family])
    plan = {"method": method, "batch": 2, "sequence": 24, "optimizer": "adamw8bit"}
    if method == "full":
        plan["dtype"] = "fp32"  # some give their loss in the type of the model
    ran = conducted(model, plan, 2)
    assert ran.code == 0, ran.fault
    assert len(ran.losses) == 2
    assert all(4 < loss < 7 for loss in ran.losses if loss is not None)  # log(160) = 5.1
    assert ran.losses[0] != ran.losses[1]  # of other parts of the text
    assert any("random" in said.text for said in ran.of(LogMessage))


def test_micro_batches_are_one_batch(tmp_path):
    """A step over two micro batches of one sequence is the step over both at once."""
    model = configured(tmp_path, torch_dtype="float32")
    shared = {"method": "full", "sequence": 32, "dtype": "fp32", "optimizer": "sgd"}
    whole = conducted(model, {**shared, "batch": 2}, 4)
    parts = conducted(model, {**shared, "batch": 1, "accumulation": 2}, 4)
    assert parts.losses == pytest.approx(whole.losses, rel=1e-5)
    assert [step.tokens for step in parts.of(StepTaken)] == [64] * 4


@pytest.mark.parametrize("generate", [0, 4])
def test_an_inference_has_a_cache_and_no_loss(tmp_path, generate):
    plan = {"method": "inference", "batch": 2, "sequence": 24, "generate": generate}
    ran = conducted(configured(tmp_path), plan, 2)
    assert ran.code == 0, ran.fault
    assert ran.losses == [None, None]
    of_a_step = ["forward", "forward", "between steps"] if generate else ["forward", STEP[-1]]
    assert [phase for step, phase in ran.phases if step == 2] == of_a_step
    assert ran.of(StepTaken)[0].tokens == 2 * (24 + max(0, generate - 1))
    # Keys and values of 2 layers, 2 heads of 16 and 2 sequences, in 16 bits: told as a cache, at
    # the end of each forward pass, and until the step is over.
    *forward, between = [e for e in ran.of(PhaseEnded) if e.step == 2]
    lengths = [24, 24 + generate - 1] if generate else [24]
    whole = [4 * -(-2 * 2 * 16 * 2 * n // 512) * 512 for n in lengths]
    assert [e.held["key-value cache"] for e in forward] == whole
    assert between.peak_held["key-value cache"] == whole[-1]
    assert "key-value cache" not in between.held
    assert all("activations" not in e.held for e in forward)


def test_a_text_file_is_learned(tmp_path):
    text = tmp_path / "fable.txt"
    text.write_text("a wolf and a lamb met at a brook. " * 3)
    plan = {"method": "full", "batch": 2, "sequence": 64, "dtype": "fp32"}
    ran = conducted("demo", plan, 8, data=str(text))
    assert ran.losses[-1] < 0.5 * ran.losses[0]
    assert any("fable.txt: 102 tokens" in said.text for said in ran.of(LogMessage))


def _run_out(*args: Any, **kwargs: Any) -> Any:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB."
    )


OPERATIONS = {
    "forward": "torch.nn.functional.silu",
    "loss": "torch.nn.functional.cross_entropy",
    "backward": "torch.Tensor.backward",
    "optimizer": "torch.optim.AdamW.step",
    "prepare": "peft.get_peft_model",
    "load": "qtui_core.training.run.live.load_weights",
}


@pytest.mark.parametrize("phase", OPERATIONS)
def test_running_out_of_memory_is_told(tmp_path, monkeypatch, phase):
    def when(told: object) -> None:
        """Not before the second step, in a phase that is part of a step."""
        step = 2 if phase in STEP else 0
        if isinstance(told, PhaseBegun) and (told.step, told.phase) == (step, phase):
            monkeypatch.setattr(OPERATIONS[phase], _run_out)

    plan = {"method": "lora", "batch": 2, "sequence": 32, "checkpointing": False}
    ran = conducted(configured(tmp_path), plan, 3, heard=when)
    fault = ran.fault
    assert ran.code == 1
    assert (fault.kind, fault.phase, fault.fatal) == ("out of memory", phase, True)
    assert fault.asked_bytes == int(2.5 * 2**30)
    assert "2.5 GiB" in fault.text
    assert len(ran.losses) == (1 if phase in STEP else 0)
    # What was there is told, the most first, as at the end of the phase, which is told too.
    last = ran.of(PhaseEnded)[-1]
    assert last.phase == phase
    if phase != "load":
        assert fault.largest[0] == max(last.held.items(), key=lambda part: part[1])
        assert "weights" in dict(fault.largest)
    if phase == "backward":
        assert dict(fault.largest)["activations"] > 0
