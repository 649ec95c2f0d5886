"""Inference: caches of keys and values against the installed transformers, byte for byte, and the
forward passes of a prompt and of a generated token, operation by operation."""

from __future__ import annotations

import itertools
import json

import pytest
from drift import Agreement, Case, compare
from every import over
from lazy_imports import LazyImport
from small_models import CONFIGS, config_of
from test_memory_drift import MODELS

from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step

torch = LazyImport("torch")
transformers = LazyImport("transformers")


T5 = {
    "vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 192, "num_layers": 3, "num_heads": 4,
    "architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0,
    "torch_dtype": "bfloat16",
}  # fmt: skip
#: One of every kind of cache and of attention.
KINDS = (
    "llama", "gpt2", "opt", "phi", "mistral, window", "gemma2", "gemma3_text",
    "llama4_text, chunks", "deepseek_v3", "bert", "smollm3", "olmo3", "ministral3", "glm4_moe",
    "gpt_oss", "qwen3_vl", "gemma3n_text", "gemma3n_text, three streams", "gemma4_text",
    "gemma4_text, one head of keys",
    "gemma4_text, wide heads", "gemma4_text, experts",
    "qwen3_next", "qwen3_5_text", "qwen3_5_text, as many keys", "qwen3_5_moe_text",
)  # fmt: skip


def case_of(model: str, **chosen: object) -> Case:
    family = model.partition(",")[0]
    config = {"model_type": family, "torch_dtype": "bfloat16", **MODELS[model]}
    plan = {"method": "inference", "batch": 2, "sequence": 48, "generate": 2} | chosen
    return Case(f"{model}, {chosen}", config, plan)


CASES: dict[str, Case] = {
    model: case_of(model, generate=0 if model == "bert" else 2) for model in KINDS
}
#: With more tokens the tape contains only the last one's pass, so only peaks can be compared.
LONGER = {m: case_of(m, generate=7) for m in ("llama", "gemma2", "deepseek_v3")}
#: An inference freezes no parameters, so autocast keeps a cast of each weight until it is left.
LOWERED = {
    model: case_of(model, dtype="fp32", autocast=True, generate=0 if model == "bert" else 2)
    for model in ("llama", "gpt2", "gemma2", "phi", "bert")
}
PADDED = {model: case_of(model, padding_mask=True) for model in ("llama", "mistral, window")}


@pytest.fixture(scope="module")
def agreements() -> dict[str, Agreement]:
    groups = (CASES, LONGER, PADDED, LOWERED)
    cases = itertools.chain.from_iterable(group.values() for group in groups)
    return {case.name: found for case, found in compare(cases)}


@pytest.mark.slow
@pytest.mark.parametrize("model", KINDS)
def test_a_prompt_and_a_token_allocate_what_those_of_the_classes_do(agreements, model):
    found = agreements[CASES[model].name]
    assert not found.failed
    assert found.standing[0] == found.standing[1]
    assert found.worst_phase == 0.0, (found.tape, found.real)
    assert found.difference is None, found.difference


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [*LONGER.values(), *PADDED.values(), *LOWERED.values()],
    ids=lambda case: case.name,
)
def test_peaks_of_the_prompt_and_of_the_last_token(agreements, case):
    found = agreements[case.name]
    assert not found.failed
    assert found.worst_phase == 0.0, (found.tape, found.real)


def cache_after_generating(family, changes, batch, prompt, tokens):
    """Bytes of the storages of a real cache, after `model.generate` on a CPU. It may also contain
    the lengths of its windows, which are on the CPU for any model until they are used."""
    torch.manual_seed(0)
    config = config_of(family)
    for name, value in changes.items():
        setattr(config, name, value)
    auto = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(3, config.vocab_size, (batch, prompt))
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    assert output.sequences.shape == (batch, prompt + tokens)
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for layer in output.past_key_values.layers
        for tensor in (layer.keys, layer.values)
    }
    return sum(storages.values())


def cache_of_the_estimate(shape, plan):
    """Bytes of keys and values at the end."""
    alive = {}
    for event in record_step(shape, plan).events:
        if event[0] == ALLOCATE and event[3].component == Component.CACHE:
            alive[event[1]] = event[2] if event[3].what != "sliding_window" else 0
        elif event[0] == FREE:
            alive.pop(event[1], None)
    return sum(alive.values())


@over("tokens", [1, 2, 5])
@over(
    ("family", "changes"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mistral", {"sliding_window": 16}),
        ("gemma2", {"sliding_window": 16}),
        ("deepseek_v3", {}),
    ],
)
def test_a_cache_holds_what_generate_leaves_in_it(family, changes, tokens):
    real = cache_after_generating(family, changes, 2, 24, tokens)
    shape = shape_from_config(config_of(family).to_dict() | changes)
    plan = resolve(
        RunPlan(method="inference", batch=2, sequence=24, generate=tokens, dtype="bf16"), None
    )
    assert cache_of_the_estimate(shape, plan) == real


def test_latents_are_kept_and_not_the_heads_made_of_them():
    shape = shape_from_config(config_of("deepseek_v3").to_dict())
    plan = resolve(RunPlan(method="inference", batch=3, sequence=40, generate=1), "bf16")
    ranks = CONFIGS["deepseek_v3"]["kv_lora_rank"] + CONFIGS["deepseek_v3"]["qk_rope_head_dim"]
    assert cache_of_the_estimate(shape, plan) == 2 * 3 * 40 * ranks * len(shape.layers)


def test_of_the_whole_run_the_prompt_needs_most():
    shape = shape_from_config(config_of("llama").to_dict())
    found = estimate(shape, RunPlan(method="inference", batch=2, sequence=96, generate=16))
    forward = [span for span in found.timeline.spans if span.name == Phase.FORWARD]
    assert len(forward) == 2
    assert found.peak < forward[1].start
    events = [event[1] for event in found.events if event[0] == PHASE]
    assert events == [Phase.LOAD, Phase.PREPARE, Phase.FORWARD, Phase.FORWARD, Phase.BETWEEN]


@pytest.mark.slow
def test_what_is_not_built_in_is_traced(qtui, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "t5"} | T5))
    asked = ("memory", str(config), "--seq", "64", "--method", "inference", "--padding-mask")
    traced = qtui(*asked, "--json")
    assert traced.returncode == 0, traced.stderr
    data = json.loads(traced.stdout)
    assert (data["origin"], data["advice"]) == ("trace", [])
    assert data["peak_live_bytes"] > 0
    assert any("not weighed" in note for note in data["notes"])
