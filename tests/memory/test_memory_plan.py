"""Impossible plans are refused with a sentence; possible plans are completed."""

import pytest

from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import parse_targets
from qtui_core.memory.plan.run_plan import RunPlan, check_against, resolve
from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Norm,
)


def small(heads=4, kv_heads=2, intermediate=96, positions="rope", layers=2, **more):
    hidden = 8 * heads
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=8,
        query=Linear("self_attn.q_proj", hidden, hidden),
        key=Linear("self_attn.k_proj", hidden, 8 * kv_heads),
        value=Linear("self_attn.v_proj", hidden, 8 * kv_heads),
        out=Linear("self_attn.o_proj", hidden, hidden),
        positions=positions,
    )
    mlp = Mlp(
        gate=Linear("mlp.gate_proj", hidden, intermediate),
        up=Linear("mlp.up_proj", hidden, intermediate),
        down=Linear("mlp.down_proj", intermediate, hidden),
    )
    norms = (Norm("input_layernorm", hidden), Norm("post_attention_layernorm", hidden))
    arguments = {
        "family": "llama",
        "architecture": "LlamaForCausalLM",
        "hidden": hidden,
        "vocabulary": 100,
        "embeddings": (Embedding("model.embed_tokens", 100, hidden),),
        "layers": (Layer(attention, mlp, norms),) * layers,
        "layer_prefix": "model.layers",
        "final_norm": Norm("model.norm", hidden),
        "head": Linear("lm_head", hidden, 100),
        "tied": False,
        "max_positions": 64,
    }
    return ModelShape(**(arguments | more))


IMPOSSIBLE = [
    ({"method": "dora"}, "'dora' is no method"),
    ({"quant": "none"}, "QLoRA trains adapters over quantized weights"),
    ({"quant": "fp32"}, "use nf4, nf4-dq, fp4, fp4-dq, int8"),
    ({"method": "lora", "quant": "nf4"}, "say --method qlora"),
    ({"method": "full", "quant": "int8"}, "cannot be trained themselves"),
    ({"method": "full", "kbit_prep": "all"}, "--kbit-prep none"),
    ({"kbit_prep": "some"}, "none, norms, all"),
    ({"dtype": "fp8"}, "'fp8' is no type"),
    ({"autocast_dtype": "fp32"}, "Autocast runs in 16 bits"),
    ({"attention": "flash", "method": "full", "dtype": "fp32"}, "Flash attention works in 16 bits"),
    ({"attention": "ring"}, "sdpa, flash, efficient, eager"),
    ({"optimizer": "lion"}, "adamw8bit"),
    ({"loss": "hinge"}, "'hinge' is no loss"),
    ({"loss": "chunked:256"}, "is no loss that is known"),
    ({"loss": "stock:3"}, "no loss that is known"),
    ({"loop": "endless"}, "trainer, manual"),
    ({"segments": "large"}, "native, expandable"),
    ({"torch": "new"}, "no version of torch"),
    ({"batch": 0}, "The batch is between 1"),
    ({"batch": 2.5}, "whole number, not 2.5"),
    ({"batch": True}, "whole number"),
    ({"sequence": 0}, "The sequence is between 1"),
    ({"sequence": 10**12}, "1,000,000,000,000 is not"),
    ({"batch": 1 << 15, "sequence": 1 << 17}, "4,294,967,296 tokens"),
    ({"lora_rank": 0}, "The rank of the adapters is between 1"),
    ({"lora_dropout": 1.0}, "from 0 to below 1"),
    ({"lora_dropout": -0.1}, "from 0 to below 1"),
    ({"lora_dropout": float("nan")}, "from 0 to below 1"),
    ({"lora_targets": ()}, "No module is named"),
    ({"accumulation": 0}, "Accumulation is between 1"),
    ({"generate": -1}, "between 0"),
    ({"gpus": 0}, "The number of GPUs is between 1"),
    ({"zero": 4, "gpus": 8}, "between 0 and 3"),
    ({"zero": 3}, "only one such GPU; use --gpus 2 or more"),
    ({"zero": 1, "gpus": 4, "pipeline_parallel": 4}, "use --gpus 8 or more"),
    ({"gpus": 6, "pipeline_parallel": 4}, "use --gpus 8"),
    ({"gpus": 2, "tensor_parallel": 2}, "tensor parallelism cannot cut"),
    ({"gpus": 2, "zero": 3, "quant": "int8"}, "row scales"),
    ({"method": "inference", "gpus": 2, "zero": 2}, "an inference has not"),
]


@pytest.mark.parametrize(("changed", "words"), IMPOSSIBLE, ids=[str(c) for c, _ in IMPOSSIBLE])
def test_what_cannot_be_is_refused_with_a_way_out(changed, words):
    with pytest.raises(UsageError) as refusal:
        resolve(RunPlan(**changed), "bfloat16")
    assert words in str(refusal.value)
    assert str(refusal.value).endswith((".", "usual."))


def test_defaults_are_those_of_the_method():
    plan = resolve(RunPlan(), "torch.float16")
    assert (plan.dtype, plan.quant, plan.kbit_prep) == ("fp16", "nf4-dq", "all")
    assert plan.autocast
    assert plan.checkpointing
    plan = resolve(RunPlan(method="full"), None)
    assert (plan.dtype, plan.quant, plan.kbit_prep) == ("bf16", None, "none")
    assert not plan.autocast
    assert not plan.checkpointing
    assert not resolve(RunPlan(method="inference", checkpointing=True), None).checkpointing
    assert resolve(resolve(RunPlan(), "bfloat16"), None) == resolve(RunPlan(), "bfloat16")


@pytest.mark.parametrize(
    "possible",
    [
        {"method": "inference", "quant": "int8"},
        {"method": "lora", "kbit_prep": "all"},
        {"method": "qlora", "quant": "fp4", "zero": 3, "gpus": 2},
        {"method": "full", "attention": "flash", "dtype": "fp32", "autocast": True},
        {"method": "full", "gpus": 8, "tensor_parallel": 2, "pipeline_parallel": 2, "zero": 3},
    ],
)
def test_unusual_plans_that_can_be_pass(possible):
    resolve(RunPlan(**possible), "bfloat16")


def test_what_has_no_meaning_for_a_method_is_not_in_its_plan():
    trained = resolve(RunPlan(method="full", generate=64, accumulation=4), None)
    assert (trained.generate, trained.accumulation) == (0, 4)
    asked = resolve(RunPlan(method="inference", generate=64, accumulation=4), None)
    assert (asked.generate, asked.accumulation, asked.checkpointing) == (64, 1, False)
    with pytest.raises(UsageError, match="Accumulation is between"):
        resolve(RunPlan(method="inference", accumulation=0), None)


def test_a_type_that_is_only_stored_in_is_not_guessed_away():
    with pytest.raises(UsageError, match=r"'float8_e4m3fn'.*--dtype"):
        resolve(RunPlan(), "float8_e4m3fn")
    assert resolve(RunPlan(dtype="bf16"), "float8_e4m3fn").dtype == "bf16"
    for empty in ({"dtype": ""}, {"adapter_dtype": ""}):
        with pytest.raises(UsageError, match="'' is no type"):
            resolve(RunPlan(**empty), "bfloat16")


def test_data_parallelism_is_what_the_other_ways_leave():
    plan = RunPlan(method="full", gpus=16, tensor_parallel=4, pipeline_parallel=2)
    assert plan.data_parallel == 2


def test_targets_are_read():
    assert parse_targets(" q_proj, v_proj ,q_proj") == ("q_proj", "v_proj")
    assert parse_targets("mlp.down_proj") == ("mlp.down_proj",)
    for text, words in (
        ("", "No module"),
        ("all-linear,q_proj", "leave out q_proj"),
        ("a b", "no"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_targets(text)


REFUSED_BY_THE_MODEL = [
    ({"gpus": 8, "tensor_parallel": 8}, {}, "does not divide 4 attention heads"),
    ({"gpus": 4, "tensor_parallel": 4}, {}, "2 heads of keys and values; use one of 1, 2."),
    ({"gpus": 2, "tensor_parallel": 2}, {"intermediate": 95}, "95 MLP columns"),
    ({"gpus": 3, "pipeline_parallel": 3}, {}, "the model has 2"),
    ({"sequence": 65}, {"positions": "learned"}, "use --seq 64 or less"),
    (
        {"method": "inference", "generate": 5},
        {"positions": "learned"},
        "69 tokens are asked for, of which 5 are generated; use --seq 59 or less",
    ),
    (
        {"method": "inference", "generate": 70},
        {"positions": "learned"},
        "use --generate 63 or less",
    ),
    ({"gpus": 7, "tensor_parallel": 7}, {}, "4 attention heads; use one of 1, 2, 4."),
    ({"gpus": 2, "tensor_parallel": 2}, {"heads": 71, "kv_heads": 71}, "use --tensor-parallel 1."),
    ({"method": "inference", "generate": 5}, {"is_encoder": True}, "does not generate"),
    ({"loss": "tiled"}, {"is_encoder": True}, "use --loss stock."),
]


@pytest.mark.parametrize(("changed", "model", "words"), REFUSED_BY_THE_MODEL)
def test_what_the_model_makes_impossible_is_refused(changed, model, words):
    plan = resolve(RunPlan(**({"method": "full", "sequence": 64} | changed)), None)
    with pytest.raises(UsageError) as refusal:
        check_against(small(**model), plan)
    assert words in str(refusal.value)


def test_a_plan_that_fits_the_model_passes():
    plan = RunPlan(method="full", sequence=640, gpus=4, tensor_parallel=2, pipeline_parallel=2)
    check_against(small(), resolve(plan, None))
