"""What is stored, compared with the real classes of the installed transformers, peft and
bitsandbytes."""

from __future__ import annotations

from collections import Counter

import pytest
from every import over
from lazy_imports import LazyImport, lazy_names
from resident import allocated_by_component
from small_models import CONFIGS, build_on_meta, config_of

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import Component, rounded
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import named_modules
from qtui_core.memory.shape.weights import WeightStorage, blocks_of, packed, tensors_of

bnb = LazyImport("bitsandbytes")
peft = LazyImport("peft")
torch = LazyImport("torch")
LoraLayer, ParamWrapper = lazy_names("peft.tuners.lora.layer", "LoraLayer", "ParamWrapper")
AutoModelForCausalLM, BitsAndBytesConfig = lazy_names(
    "transformers", "AutoModelForCausalLM", "BitsAndBytesConfig"
)
replace_with_bnb_linear = LazyImport(
    "transformers.integrations.bitsandbytes", "replace_with_bnb_linear"
)
HfQuantizer = LazyImport("transformers.quantizers.base", "HfQuantizer")


SHORT = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.uint8": "uint8",
    "torch.int8": "int8",
}


def shape_of(family):
    return shape_from_config(config_of(family).to_dict())


def modules_with_head(shape):
    modules = dict(named_modules(shape))
    if shape.head is not None:
        modules[shape.head.name] = shape.head
    return modules.items()


@over("family", CONFIGS)
def test_the_layers_that_bitsandbytes_replaces(family):
    shape, plan = shape_of(family), resolve(RunPlan(), "bf16")
    model = build_on_meta(family)
    skipped = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    replace_with_bnb_linear(model, skipped, BitsAndBytesConfig(load_in_4bit=True))
    real = {name for name, m in model.named_modules() if isinstance(m, bnb.nn.Linear4bit)}
    ours = {
        name
        for name, m in modules_with_head(shape)
        if WeightStorage(shape, plan).is_quantized(name, m)
    }
    assert ours == real
    assert real


def real_adapters(model):
    """Name of what has an adapter -> shapes of A and B; stacked experts have the name of their
    parameter."""
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if isinstance(module, ParamWrapper):
            name = f"{name}.{module.parameter_name}"
        tables = module.lora_embedding_A, module.lora_embedding_B
        if len(tables[0]):
            found[name] = tuple(tuple(table["default"].shape) for table in tables)
        else:
            pair = module.lora_A["default"], module.lora_B["default"]
            found[name] = tuple(tuple(matrix.weight.shape) for matrix in pair)
    return found


def our_adapters(shape, plan):
    found = {}
    for tensor in tensors_of(shape, plan):
        if tensor.kind == "adapter":
            found.setdefault(tensor.name.partition(".lora_")[0], []).append(tensor.shape)
    return {name: tuple(pair) for name, pair in found.items()}


@over(
    ("family", "targets"),
    [
        *((family, ("all-linear",)) for family in CONFIGS),
        ("llama", ("q_proj", "v_proj")),
        ("llama", ("mlp.down_proj", "lm_head")),
        ("llama", ("model.layers.1.self_attn.o_proj",)),
        ("llama", ("embed_tokens",)),
        ("gpt2", ("c_attn",)),
        ("bert", ("dense",)),
        ("mixtral", ("w2",)),
        ("mixtral", ("q_proj", "w1", "w3")),
        ("qwen3_moe", ("gate", "down_proj")),
        ("qwen2_moe", ("down_proj", "v_proj")),
        ("deepseek_v3", ("gate_proj", "up_proj", "o_proj")),
        ("mixtral", ("q_proj", "experts.gate_up_proj", "experts.down_proj")),
        ("qwen3_moe", ("mlp.experts.down_proj",)),
        ("glm4_moe", ("experts.gate_up_proj", "o_proj")),
    ],
)
def test_adapters_are_where_peft_puts_them(family, targets):
    shape = shape_of(family)
    plan = resolve(RunPlan(method="lora", lora_rank=6, lora_targets=targets), "bf16")
    stacked = [target for target in targets if "experts." in target]
    chosen = [target for target in targets if target not in stacked]
    config = peft.LoraConfig(
        r=6,
        target_modules="all-linear" if chosen == ["all-linear"] else chosen,
        target_parameters=stacked or None,
    )
    real = real_adapters(peft.get_peft_model(build_on_meta(family), config))
    # peft wraps this router, too, and its forward pass then fails because it returns a tuple.
    real = {name: pair for name, pair in real.items() if not name.endswith("feed_forward.router")}
    assert our_adapters(shape, plan) == real
    assert real


@pytest.mark.parametrize(
    ("targets", "dropout", "theirs", "ours"),
    [
        (["w1", "q_proj"], 0.0, "without also targeting w3", "add w3, or leave"),
        ("all-linear", 0.1, "does not work with lora_dropout", "without dropout only"),
    ],
)
def test_adapters_that_peft_refuses_are_refused(targets, dropout, theirs, ours):
    config = peft.LoraConfig(target_modules=targets, lora_dropout=dropout)
    with pytest.raises(ValueError, match=theirs):
        peft.get_peft_model(build_on_meta("mixtral"), config)
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    plan = RunPlan(method="lora", lora_targets=names, lora_dropout=dropout)
    with pytest.raises(UsageError, match=ours):
        blocks_of(shape_of("mixtral"), resolve(plan, None))


def test_adapters_on_a_tied_head():
    shape = shape_of("qwen2")
    plan = resolve(RunPlan(method="lora", lora_targets=("lm_head",)), None)
    names = [t.name for t in tensors_of(shape, plan) if t.requires_grad]
    assert names == ["lm_head.lora_A.default.weight", "lm_head.lora_B.default.weight"]


def test_adapters_on_no_module_are_refused_and_names_are_offered():
    plan = resolve(RunPlan(lora_targets=("query",)), None)
    with pytest.raises(UsageError, match=r"No module .* named query.*q_proj, k_proj"):
        blocks_of(shape_of("llama"), plan)
    with pytest.raises(UsageError, match="experts are stacked"):
        blocks_of(shape_of("qwen2_moe"), resolve(RunPlan(lora_targets=("experts",)), None))


@over("quant", ["nf4", "nf4-dq", "fp4", "fp4-dq"])
@over("size", [(7, 9), (64, 64), (129, 64), (257, 1025)])
def test_packed_weights_against_bitsandbytes(quant, size):
    values, state = bnb.functional.quantize_4bit(
        torch.randn(size, dtype=torch.bfloat16),
        compress_statistics=quant.endswith("-dq"),
        quant_type=quant[:3],
    )
    real = {
        "weight": values,
        "weight.absmax": state.absmax,
        "weight.quant_map": state.code,
    }
    if state.nested:
        real["weight.nested_absmax"] = state.state2.absmax
        real["weight.nested_quant_map"] = state.state2.code
        real["weight.nested_offset"] = state.offset
    ours = {t.name: (t.shape, t.dtype) for t in packed("weight", size, quant)}
    assert ours == {name: (tuple(t.shape), SHORT[str(t.dtype)]) for name, t in real.items()}
    assert sum(t.bytes for t in packed("weight", size, quant)) == sum(
        t.untyped_storage().nbytes() for t in real.values()
    )


def test_each_packed_weight_has_tables_of_its_own():
    states = [
        bnb.functional.quantize_4bit(
            torch.randn(64, 64), compress_statistics=True, quant_type="nf4"
        )[1]
        for _ in range(2)
    ]
    tables = {s.code.data_ptr() for s in states} | {s.state2.code.data_ptr() for s in states}
    assert len(tables) == 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folder of a small Qwen2, whose projections have biases."""
    folder = tmp_path_factory.mktemp("qwen2")
    model = AutoModelForCausalLM.from_config(config_of("qwen2"), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def storages(model, *, adapters):
    """name -> (elements, dtype) of everything the model holds, and bytes of all storages."""
    held = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        held[name] = parameter
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            held[f"{name}.absmax"] = state.absmax
            held[f"{name}.quant_map"] = state.code
            if state.nested:
                held[f"{name}.nested_absmax"] = state.state2.absmax
                held[f"{name}.nested_quant_map"] = state.state2.code
                held[f"{name}.nested_offset"] = state.offset
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear8bitLt):
            name = name.removeprefix("base_model.model.").removesuffix(".base_layer")
            scales = module.weight.SCB
            held[f"{name}.SCB"] = module.state.SCB if scales is None else scales
    return {
        name: (tensor.numel(), SHORT[str(tensor.dtype)])
        for name, tensor in held.items()
        if adapters or "lora_" not in name
    }


def expected(tensors, when):
    return {
        t.name: (t.elements, getattr(t, when))
        for t in tensors
        if getattr(t, when) is not None
        and t.component != Component.BUFFERS
        and t.name != "bitsandbytes.dynamic_map"
    }


@pytest.mark.slow
@pytest.mark.parametrize("prepare", ["none", "all"])
@pytest.mark.parametrize("quant", ["nf4", "fp4-dq", "int8"])
def test_a_real_quantized_model_tensor_by_tensor(checkpoint, quant, prepare):
    """Loaded, prepared, and after a forward pass."""
    settings = (
        BitsAndBytesConfig(load_in_8bit=True)
        if quant == "int8"
        else BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=quant[:3],
            bnb_4bit_use_double_quant=quant.endswith("-dq"),
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    )
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, quantization_config=settings, device_map="cpu", dtype=torch.bfloat16
    )
    plan = RunPlan(quant=quant, kbit_prep=prepare, lora_rank=4, autocast=False)
    tensors = list(tensors_of(shape_of("qwen2"), resolve(plan, "bf16")))
    assert storages(model, adapters=True) == expected(tensors, "loaded")
    if prepare == "all":
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    assert storages(model, adapters=True) == expected(tensors, "prepared")
    model.train()
    model(input_ids=torch.arange(32).reshape(2, 16))
    assert storages(model, adapters=True) == expected(tensors, "dtype")
    trained = {
        name.removeprefix("base_model.model.")
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    assert trained == {t.name for t in tensors if t.requires_grad}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["gpt2", "bert", "deepseek_v3"])
def test_full_fine_tuning_trains_every_parameter_in_its_type(family, dtype):
    plan = resolve(RunPlan(method="full", dtype=dtype), None)
    model = build_on_meta(family)
    tensors = [t for t in tensors_of(shape_of(family), plan) if t.kind != "buffer"]
    assert {t.name: t.shape for t in tensors} == {
        name: tuple(p.shape) for name, p in model.named_parameters()
    }
    assert {(t.dtype, t.requires_grad) for t in tensors} == {(dtype, True)}


def test_norms_alone_are_raised_where_asked():
    plan = resolve(RunPlan(kbit_prep="norms"), "bf16")
    raised = {
        t.name.rpartition(".")[0].rpartition(".")[2]
        for t in tensors_of(shape_of("qwen3"), plan)
        if t.loaded == "bf16" and t.prepared == "fp32"
    }
    assert raised == {
        "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm",
    }  # fmt: skip


@over("family", CONFIGS)
def test_blocks_are_the_same_tensors_as_their_expansion(family):
    shape, plan = shape_of(family), resolve(RunPlan(quant="nf4-dq"), "bf16")
    totals = Counter()
    for tensor in tensors_of(shape, plan):
        totals[tensor.component] += rounded(tensor.bytes)
    assert allocated_by_component(blocks_of(shape, plan)) == totals
    prefixes = [p for block in blocks_of(shape, plan) for p in block.prefixes]
    assert len(set(prefixes)) == len(prefixes) == 1 + len(shape.layers)


def test_adapters_that_would_not_be_trained_are_refused():
    cases = [
        ("llama", RunPlan(lora_targets=("lm_head",), loss="fused"), "--loss fused"),
        ("qwen2", RunPlan(lora_targets=("lm_head", "q_proj"), loss="fused"), "--loss fused"),
        ("opt", RunPlan(lora_targets=("embed_positions",)), "attention mask"),
    ]
    for family, plan, words in cases:
        with pytest.raises(UsageError, match=words):
            blocks_of(shape_of(family), resolve(plan, None))
