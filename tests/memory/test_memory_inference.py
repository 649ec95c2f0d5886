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

from qtui_core.errors import UsageError
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, check_against, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step

torch = LazyImport("torch")
transformers = LazyImport("transformers")


#: One of every kind of cache and of attention.
KINDS = (
    "llama", "gpt2", "opt", "phi", "mistral, window", "gemma2", "gemma3_text",
    "llama4_text, chunks", "bloom", "falcon, grouped", "falcon, alibi", "deepseek_v3", "bert",
    "t5", "t5, gated",
)  # fmt: skip
T5_CLASS = {"architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0}
#: Compared to so many percent of every phase, not operation by operation: with alibi, the slopes
#: and the positions are made in another order.
FURTHER = {"falcon, alibi": 0.1}


def case_of(model: str, **chosen: object) -> Case:
    family = model.partition(",")[0]
    config = {"model_type": family, "torch_dtype": "bfloat16", **MODELS[model]}
    plan = {"method": "inference", "batch": 2, "sequence": 48, "generate": 2} | chosen
    return Case(f"{model}, {chosen}", config, plan)


CASES: dict[str, Case] = {
    model: case_of(model, generate=0 if model == "bert" else 2) for model in KINDS
}
#: With more tokens the tape contains only the last one's pass, so only peaks can be compared.
LONGER = {m: case_of(m, generate=7) for m in ("llama", "gemma2", "deepseek_v3", "t5")}
#: An inference freezes no parameters, so autocast keeps a cast of each weight until it is left.
LOWERED = {
    model: case_of(model, dtype="fp32", autocast=True, generate=0 if model == "bert" else 2)
    for model in ("llama", "gpt2", "gemma2", "phi", "bloom", "bert", "t5")
}
#: Rows of the bias that are no multiple of 16 elements.
UNEVEN = {model: case_of(model, sequence=41) for model in ("t5", "bloom")}
PADDED = {model: case_of(model, padding_mask=True) for model in ("llama", "mistral, window")}


@pytest.fixture(scope="module")
def agreements() -> dict[str, Agreement]:
    groups = (CASES, LONGER, PADDED, LOWERED, UNEVEN)
    cases = itertools.chain.from_iterable(group.values() for group in groups)
    return {case.name: found for case, found in compare(cases)}


@pytest.mark.slow
@pytest.mark.parametrize("model", KINDS)
def test_a_prompt_and_a_token_allocate_what_those_of_the_classes_do(agreements, model):
    found = agreements[CASES[model].name]
    assert not found.failed
    assert found.standing[0] == found.standing[1]
    assert abs(found.worst_phase) <= FURTHER.get(model, 0.0), (found.tape, found.real)
    if model not in FURTHER:
        assert found.difference is None, found.difference


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [*LONGER.values(), *PADDED.values(), *LOWERED.values(), *UNEVEN.values()],
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
        ("bloom", {}),
        ("falcon", {}),
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
    config.write_text(json.dumps({"model_type": "t5", **MODELS["t5"]} | T5_CLASS))
    asked = ("memory", str(config), "--seq", "64", "--method", "inference", "--padding-mask")
    refused = qtui(*asked)
    assert refused.returncode == 2
    assert "use --trace" in refused.stderr
    traced = qtui(*asked, "--trace", "--json")
    assert traced.returncode == 0, traced.stderr
    data = json.loads(traced.stdout)
    assert (data["origin"], data["advice"]) == ("trace", [])
    assert data["peak_live_bytes"] > 0
    assert any("not weighed" in note for note in data["notes"])


def test_a_padding_mask_of_an_encoder_and_decoder_is_refused_with_a_way_out():
    shape = shape_from_config(config_of("t5").to_dict())
    plan = RunPlan(method="inference", padding_mask=True)
    with pytest.raises(UsageError, match=r"a padding mask .* not built in.*--trace"):
        check_against(shape, resolve(plan, "bf16"))


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_a_decoder_keeps_its_own_tokens_and_those_of_the_encoder(tokens):
    torch.manual_seed(0)
    config = config_of("t5")
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    ids = torch.randint(3, config.vocab_size, (2, 24))
    output = model.eval().generate(
        ids,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
    )
    caches = output.past_key_values
    real = sum(
        tensor.untyped_storage().nbytes()
        for cache in (caches.self_attention_cache, caches.cross_attention_cache)
        for layer in cache.layers
        for tensor in (layer.keys, layer.values)
    )
    shape = shape_from_config(config.to_dict())
    plan = RunPlan(method="inference", batch=2, sequence=24, generate=tokens, dtype="bf16")
    assert cache_of_the_estimate(shape, resolve(plan, None)) == real
