"""Checkpoints that are quantized already: what is stored of them, according to the libraries' own
modules."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every import over
from lazy_imports import LazyImport, lazy_names
from shorthands import allocated_in

from qtui_core.errors import UsageError
from qtui_core.memory.advice.fit import advise, candidates
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.estimate import estimate, estimate_peaks
from qtui_core.memory.plan.run_plan import RunPlan, resolve, resolve_for
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.packed import held_by_files
from qtui_core.memory.shape.packings import packing_of
from qtui_core.memory.shape.weights import tensors_of
from qtui_core.memory.step.backbones import Model
from qtui_core.memory.tape.blocks.modules import project
from qtui_core.memory.tape.tape import Tape, backward
from qtui_core.models import open_model
from qtui_core.models.tensors import TensorInfo
from tests.memory.small_models import config_of
from tests.support.packed_models import awq_layer, gptq_layer, save_model, under

torch = LazyImport("torch")
transformers = LazyImport("transformers")
AutoHfQuantizer = LazyImport("transformers.quantizers", "AutoHfQuantizer")
Tracker = LazyImport("qtui_core.training.tracing.tracker", "Tracker")
Mxfp4GptOssExperts = LazyImport("transformers.integrations.mxfp4", "Mxfp4GptOssExperts")
AwqLike, Packed = lazy_names("small_layers", "AwqLike", "Packed")


INFERENCE = RunPlan(method="inference", sequence=16)
MXFP4 = {"quant_method": "mxfp4"}

GROUPED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
DYNAMIC = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def compressed(form: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*layers\\.1\\.mlp.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}},
    }


COMPRESSED = {
    "4 bits": compressed("pack-quantized", GROUPED),
    "4 bits asymmetric": compressed("pack-quantized", GROUPED | {"symmetric": False}),
    "3 bits by row": compressed(
        "pack-quantized", {"num_bits": 3, "type": "int", "strategy": "channel", "symmetric": True}
    ),
    "int8": compressed(
        "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        input_activations=DYNAMIC | {"type": "int"},
    ),
    "fp8": compressed(
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True},
        input_activations=DYNAMIC | {"strategy": "tensor", "dynamic": False},
    ),
    "fp8 in tiles": compressed(
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32],
         "symmetric": True},
        input_activations=DYNAMIC,
    ),
    "nvfp4": compressed(
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
         "symmetric": True},
        input_activations={"num_bits": 4, "type": "float", "strategy": "tensor_group",
                           "group_size": 16, "dynamic": "local", "symmetric": True},
    ),
    "mxfp4": compressed("mxfp4-pack-quantized", GROUPED | {"type": "float"}),
}  # fmt: skip
FP8 = {
    "tiles": ("llama", {"weight_block_size": [32, 32]}),
    "usual tiles": ("llama", {}),
    "a scale a tensor": ("llama", {"weight_block_size": None, "activation_scheme": "static"}),
    "exponents": ("llama", {"weight_block_size": [16, 16], "scale_fmt": "ue8m0"}),
    "list": ("llama", {"modules_to_not_convert": ["model.layers.0", "down_proj"]}),
    "tied": ("qwen3", {"weight_block_size": [32, 32], "modules_to_not_convert": ["lm_head"]}),
    "experts": ("qwen3_moe", {"weight_block_size": [16, 16], "modules_to_not_convert": [
        "lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]}),
    "latent": ("deepseek_v3", {"weight_block_size": [16, 16]}),
}  # fmt: skip


#: By how much the bytes of packed weights may differ if a config.json is all there is, at matrices
#: of 512 x 1,024: what the one rule leaves out are zero points and GPTQ's index of groups.
DERIVED = 0.04
#: hqq puts ten codes of 3 bits into a word of 32.
TEN_IN_A_WORD = 0.07


def config(family: str, *, wide: bool = False) -> Any:
    found = config_of(family)
    if wide and not hasattr(found, "num_experts"):
        found.hidden_size, found.intermediate_size, found.head_dim = 512, 1024, 128
    return found


def of(family: str, quantization: dict[str, Any] | None, *, wide: bool = False) -> Any:
    keys = {"dtype": "bfloat16", "torch_dtype": "bfloat16", "quantization_config": quantization}
    return shape_from_config({**config(family, wide=wide).to_dict(), **keys})


def built(
    family: str, settings: dict[str, Any] | None, device: str = "meta", *, wide: bool = False
) -> Any:
    """The class of transformers, with the layers that its quantizer makes."""
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config(family, wide=wide), dtype=torch.bfloat16
        )
    if settings is not None:
        quantizer = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
        if device == "cpu":
            quantizer.validate_environment()
        quantizer._process_model_before_weight_loading(model)
    return model


#: Tables of the rotation, and what routers of DeepSeek keep in float32.
_OF_NO_LAYER = ("inv_freq", "e_score_correction_bias")


def storages(model: Any) -> dict[str, int]:
    """Name -> bytes of everything that stays, except the tables of the rotation."""
    state = [*model.named_parameters(), *model.named_buffers()]
    return {n: t.nbytes for n, t in state if not n.endswith(_OF_NO_LAYER)}


def estimated(shape: Any, when: str = "dtype") -> dict[str, int]:
    plan = resolve(INFERENCE, shape.dtype, shape.packed_as)
    found = {}
    for tensor in tensors_of(shape, plan):
        if tensor.component is Component.BUFFERS or tensor.name.endswith(_OF_NO_LAYER):
            continue
        elements = tensor.loaded_elements if when == "loaded" else tensor.elements
        found[tensor.name] = elements * SIZES[getattr(tensor, when)]
    return found


def files_of(model: Any) -> dict[str, Any]:
    """The tensors of a model as files name them: those of each expert for itself."""
    found = {}
    for name, tensor in model.state_dict().items():
        layer, experts, rest = name.partition(".experts.")
        stacked, _, suffix = rest.partition("_proj")
        if not experts:
            found[name] = tensor
            continue
        for number, expert in enumerate(tensor):
            halves = expert.chunk(2) if stacked == "gate_up" else [expert]
            for module, half in zip(stacked.split("_"), halves, strict=True):
                found[f"{layer}.experts.{number}.{module}_proj.weight{suffix}"] = half
    if model.config.tie_word_embeddings:
        del found["lm_head.weight"]
    return found


TAGS = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64",
}  # fmt: skip


def with_headers(shape: Any, tensors: dict[str, Any]) -> Any:
    """The shape, held against the headers of files with these tensors."""
    infos = {}
    for name, tensor in tensors.items():
        tag = TAGS[str(tensor.dtype).rpartition(".")[2]]
        infos[name] = TensorInfo(
            name, tag, tuple(tensor.shape), 0, tensor.nbytes, "", 0, 0, readable=True
        )
    return held_by_files(shape, infos)


def by_hand(layer: Callable[[int, int], dict[str, Any]]) -> dict[str, Any]:
    """The tensors of a llama of which the linear layers are packed as `layer` packs one."""
    layer, found = functools.cache(layer), {}
    for name, weight in built("llama", None, wide=True).state_dict().items():
        module, linear, _ = name.rpartition(".weight")
        packed = module.endswith("_proj") and linear
        found |= under(module, layer(*weight.shape)) if packed else {name: weight}
    return found


def published(make: Any, *sizes: int) -> Callable[[int, int], dict[str, Any]]:
    rng = np.random.default_rng(0)
    return lambda outputs, inputs: make(rng, outputs, inputs, *sizes)[1]


GPTQ = {
    f"gptq {bits} bits in {group}": (
        {"quant_method": "gptq", "bits": bits, "group_size": group},
        published(gptq_layer, bits, group),
    )
    for bits, group in ((2, 64), (3, 128), (4, 32), (4, 128), (8, 128))
}
BY_HAND = GPTQ | {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, published(awq_layer, 32)),
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_is_stored_as_transformers_makes_its_layers(name):
    family, settings = FP8[name]
    settings = {"quant_method": "fp8", **settings}
    model = built(family, settings)
    shape = with_headers(of(family, settings), files_of(model))
    assert estimated(shape) == storages(model)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_are_stored_as_the_library_does_and_unpacked_by_the_first_forward(name):
    model = built("llama", COMPRESSED[name], "cpu")
    shape = with_headers(of("llama", COMPRESSED[name]), files_of(model))
    packed = {n.replace("weight_packed", "weight"): size for n, size in storages(model).items()}
    assert estimated(shape, "loaded") == packed
    model(torch.zeros((1, 8), dtype=torch.int64))
    assert estimated(shape) == storages(model)


@pytest.mark.parametrize("name", BY_HAND)
def test_gptq_and_awq_are_stored_as_their_formats_are_published(name):
    settings, layer = BY_HAND[name]
    tensors = by_hand(layer)
    shape = with_headers(of("llama", settings, wide=True), tensors)
    assert estimated(shape) == {n: tensor.nbytes for n, tensor in tensors.items()}
    assert estimate(shape, INFERENCE).components[0].basis == "exact"


def assert_derived(shape: Any, bytes_of_packed: int, within: float) -> None:
    """Without headers, packed modules take about as much, and it is said to be derived."""
    found = {n: size for n, size in estimated(shape, "loaded").items() if "_proj" in n}
    assert sum(found.values()) == pytest.approx(bytes_of_packed, rel=within)
    bases = {term.name: term.basis for term in estimate(shape, INFERENCE).components}
    assert bases["weights"] == bases["quantization constants"] == "derived"


@pytest.mark.parametrize("name", [*FP8, *COMPRESSED, *BY_HAND])
def test_a_configuration_alone_is_derived_and_close(name):
    family = "llama"
    if name in BY_HAND:
        settings, layer = BY_HAND[name]
        tensors = by_hand(layer)
    else:
        family, settings = FP8.get(name, ("llama", COMPRESSED.get(name)))
        method = {"quant_method": "fp8"} if name in FP8 else {}
        settings = method | settings
        tensors = files_of(built(family, settings, "meta" if method else "cpu", wide=True))
    real = sum(tensor.nbytes for n, tensor in tensors.items() if "_proj" in n)
    assert_derived(of(family, settings, wide=True), real, DERIVED)


def test_fbgemm_and_hqq_and_modelopt_by_their_arithmetic():
    hqq = {"quant_method": "hqq", "skip_modules": ["lm_head"]}

    def grouped(bits: int, size: int) -> dict[str, Any]:
        weights = {"nbits": bits, "group_size": size, "axis": 1}
        return {**hqq, "quant_config": {"weight_quant_params": weights}}

    count = 1024 * 512
    nvfp4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    cases = [
        ({"quant_method": "fbgemm_fp8"}, count + 4 * 1024 + 4, DERIVED),
        (grouped(4, 64), count // 2 + 2 * 2 * count // 64, DERIVED),
        (grouped(2, 16), count // 4 + 2 * 2 * count // 16, DERIVED),
        (grouped(3, 64), 4 * 64 * 820 + 2 * 2 * count // 64, TEN_IN_A_WORD),
        (nvfp4, count // 2 + count // 16 + 4 + 4, DERIVED),
        (nvfp4 | {"quant_algo": "FP8"}, count + 4 + 4, DERIVED),
    ]
    for settings, nbytes, within in cases:
        found = estimated(of("llama", settings, wide=True))
        module = sum(size for name, size in found.items() if "layers.0.mlp.up_proj" in name)
        assert module == pytest.approx(nbytes, rel=within), settings


def test_bitsandbytes_comes_out_as_if_it_were_quantized_at_load():
    stored = {
        "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                   "bnb_4bit_use_double_quant": True},
        "fp4": {"load_in_4bit": True},
        "int8": {"load_in_8bit": True},
    }  # fmt: skip
    plain = of("llama", None)
    for quant, settings in stored.items():
        shape = of("llama", {"quant_method": "bitsandbytes", **settings})
        for method in ("qlora", "inference"):
            plan = RunPlan(method=method, sequence=64)
            found, other = estimate(shape, plan), estimate(plain, replace(plan, quant=quant))
            assert found.plan == other.plan
            assert found.resident_bytes == other.resident_bytes
            assert allocated_in(found, "backward") == allocated_in(other, "backward")
            assert allocated_in(found, "load") < allocated_in(other, "load"), (
                "nothing is quantized while it loads"
            )
    kept = of("llama", {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head", "k_proj"]})
    names = {t.name for t in tensors_of(kept, resolve(INFERENCE, "bf16", "int8"))}
    assert "model.layers.0.self_attn.q_proj.SCB" in names
    assert "model.layers.0.self_attn.k_proj.SCB" not in names


def test_terms_have_formulas_of_what_the_checkpoint_stores():
    """Even if bytes are equal by chance: 4 h equals 8 k here."""
    settings, layer = BY_HAND["gptq 4 bits in 32"]
    terms = estimate(
        with_headers(of("llama", settings, wide=True), by_hand(layer)), INFERENCE
    ).terms
    found = {
        term.name.rpartition(".")[2]: term.formula
        for term in terms
        if "up_proj" in term.name and term.component == "quantization constants"
    }
    assert found == {"scales": "L*h*I/16", "qzeros": "L*h*I/64", "g_idx": "L*h*4"}
    tiled = {"quant_method": "fp8", "weight_block_size": [16, 32]}
    shape = with_headers(of("llama", tiled), files_of(built("llama", tiled)))
    terms = estimate(shape, INFERENCE).terms
    assert {t.formula for t in terms if t.name.endswith("up_proj.weight_scale_inv")} == {
        "L*r512(h*I/128)"
    }


def test_names_of_modules_that_stay_as_they_are():
    cases = {
        "gptq less": ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*down_proj": {}}},
                      "mlp.down_proj", "mlp.up_proj"),
        "gptq some": ({"quant_method": "gptq", "bits": 4,
                       "modules_in_block_to_quantize": [["self_attn.q_proj"]]},
                      "self_attn.k_proj", "self_attn.q_proj"),
        "awq": ({"quant_method": "awq", "modules_to_not_convert": ["v_proj"]},
                "self_attn.v_proj", "self_attn.q_proj"),
        "hqq": ({"quant_method": "hqq", "skip_modules": ["lm_head", "mlp.up_proj"],
                 "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32}}},
                "mlp.up_proj", "mlp.down_proj"),
        "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8",
                      "ignore": ["lm_head", "model.layers.*.mlp*"]},
                     "mlp.up_proj", "self_attn.q_proj"),
    }  # fmt: skip
    failed = []
    for name, (settings, plain, packed) in cases.items():
        found = estimated(of("llama", settings))
        of_plain = [n for n in found if n.startswith(f"model.layers.1.{plain}.")]
        of_packed = [n for n in found if n.startswith(f"model.layers.1.{packed}.")]
        if of_plain != [f"model.layers.1.{plain}.weight"] or len(of_packed) < 2:
            failed.append((name, of_plain, of_packed))
    changed = of("llama", {"quant_method": "gptq", "bits": 4, "group_size": 32,
                           "dynamic": {r"+:.*\.1\..*up_proj": {"bits": 8}}})  # fmt: skip
    codes = [size for n, size in estimated(changed).items() if n.endswith("up_proj.weight")]
    assert codes == [96 * 64 // 2, 96 * 64]
    assert not failed


@over(
    "settings",
    [
        {"quant_method": "quip#"},
        {"quant_method": "gptq", "bits": 5},
        {"quant_method": "gptq", "bits": 4, "group_size": "128"},
        {"quant_method": "awq", "version": "marlin"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "compressed-tensors", "format": "sparse-24", "config_groups": {
            "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "channel"}}}},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "a": {"targets": 5, "weights": {"num_bits": 4, "strategy": "channel"}}}},
        {"quant_method": "compressed-tensors", "config_groups": {
            "a": {"targets": ["Linear"], "format": ["dense"],
                  "weights": {"num_bits": 4, "strategy": "channel"}}}},
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": None}},
        {"quant_method": "modelopt", "quant_algo": "W4A8"},
        {"quant_method": ["gptq"]},
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_said_and_nothing_that_rests_on_it_is_exact(settings):
    shape = of("llama", settings)
    assert any("does not say how many bytes" in note for note in shape.notes)
    found = estimate(shape, INFERENCE)
    bases = {term.name: term.basis for term in found.components}
    assert bases["weights"] == "assumed"
    assert found.basis == "assumed"
    assert found.resident_bytes == estimate(of("llama", None), INFERENCE).resident_bytes


def test_the_files_say_what_is_stored(tmp_path):
    """Bytes are those of the files, whatever the configuration says."""
    rng = np.random.default_rng(0)
    state = built("llama", None).state_dict()
    plain = {n: np.zeros(tensor.shape, np.float16) for n, tensor in state.items()}
    tensors = {}
    for name, weight in plain.items():
        module = name.removesuffix(".weight")
        if not name.startswith("model.layers.") or "norm" in name:
            tensors[name] = weight
            continue
        bits = 8 if "down_proj" in name else 4
        tensors |= under(module, gptq_layer(rng, *weight.shape, bits, 32)[1])
    config = {**config_of("llama").to_dict(), "dtype": "float16"}
    stored = {name: tensor.nbytes for name, tensor in tensors.items()}
    down = {"+:.*down_proj": {"bits": 8}}
    said = {
        "": {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": down},
        "contradict": {"quant_method": "gptq", "bits": 4, "group_size": 32},
        "contradict each": {"quant_method": "gptq", "bits": 8, "group_size": 16, "lm_head": True},
        "those of its files": {"quant_method": "quip#"},
    }
    for words, settings in said.items():
        folder = save_model(tmp_path / (words or "so"), tensors, settings, **config)
        with open_model(str(folder)) as source:
            shape = held_by_files(shape_from_config(source.config), source.tensors)
        assert estimated(shape) == stored, words
        assert shape.storage_known
        doubts = [n for n in shape.notes if "contradict" in n or "those of its files" in n]
        assert len(doubts) == bool(words)
        assert words in "".join(doubts)
        assert estimate(shape, INFERENCE).basis != "assumed"
    assert held_by_files(of("llama", None), {}).packing is None


def test_experts_whose_storage_is_not_told():
    shape = of("qwen3_moe", {"quant_method": "gptq", "bits": 4, "group_size": 16})
    assert any("experts" in note for note in shape.notes)
    assert {t.basis for t in estimate(shape, INFERENCE).components if t.name == "weights"} == {
        "assumed"
    }


EXPERTS = ("gate_proj", "up_proj", "down_proj")


def test_what_such_a_checkpoint_does_not_allow():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    fp8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    refused = [
        (gptq, RunPlan(quant="nf4"), "quantized already"),
        (gptq, RunPlan(method="inference", quant="int8"), "quantized already"),
        (
            gptq,
            RunPlan(method="full", quant="stored"),
            "cannot be trained themselves; use --method qlora",
        ),
        (gptq, RunPlan(method="lora", quant="stored"), "is QLoRA; use --method qlora"),
        (gptq, RunPlan(kbit_prep="all"), "--kbit-prep none"),
        (gptq, RunPlan(kernels="fused"), "--kernels torch"),
        (gptq, RunPlan(gpus=2, zero=3), "not built in"),
        (fp8, RunPlan(method="full", quant="stored"), "--quant none"),
        (fp8, RunPlan(quant="none"), "leave out --quant, or say --method lora"),
        ({"quant_method": "fbgemm_fp8"}, RunPlan(quant="stored"), "no adapters are trained"),
        ({"quant_method": "quip#"}, RunPlan(quant="stored"), "no adapters are trained"),
        (COMPRESSED["4 bits"], RunPlan(quant="stored"), "--method lora with --quant none"),
        (
            {"load_in_4bit": True},
            RunPlan(method="lora", quant="fp4"),
            "is QLoRA; use --method qlora",
        ),
        ({"load_in_4bit": True}, RunPlan(quant="nf4-dq"), "quantized already"),
        (None, RunPlan(quant="stored"), "this one is not"),
    ]
    failed = []
    for settings, plan, words in refused:
        try:
            estimate(of("llama", settings), replace(plan, sequence=32))
            failed.append((settings, plan, "nothing refused"))
        except UsageError as error:
            if words not in str(error):
                failed.append((settings, plan, str(error)))
    assert not failed
    with pytest.raises(UsageError, match=r"attention alone, --lora-targets (\S+)\.") as told:
        estimate(of("qwen3_moe", fp8), RunPlan(sequence=32, lora_targets=EXPERTS))
    advice = str(told.value).rpartition(" ")[2].rstrip(".").split(",")
    assert set(advice) == {"q_proj", "k_proj", "v_proj", "o_proj"}
    usual = resolve_for(of("qwen3_moe", fp8), RunPlan(method="lora", sequence=32))
    assert usual.method == "qlora"
    assert set(usual.lora_targets) == set(advice)
    assert estimate(of("qwen3_moe", fp8), usual)


def test_training_over_what_no_library_trains_is_of_the_plain_checkpoint():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    plain = of("llama", None)
    for settings, method in ((gptq, "full"), (COMPRESSED["4 bits"], "qlora"),
                             (COMPRESSED["4 bits"], "lora"), (MXFP4, "qlora")):  # fmt: skip
        plan = RunPlan(method=method, sequence=32)
        found, own = estimate(of("llama", settings), plan), estimate(plain, plan)
        assert found.peak_allocated_bytes == own.peak_allocated_bytes
        assert found.terms == own.terms
        assert found.plan.quant == {"qlora": "nf4-dq"}.get(method, "none")
    unpacked = estimate(of("llama", gptq), replace(INFERENCE, quant="none"))
    assert unpacked.peak_allocated_bytes == estimate(plain, INFERENCE).peak_allocated_bytes


def test_fp8_unpacked_is_the_plain_checkpoint():
    fp8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    for way in (RunPlan(method="full", quant="none"), RunPlan(method="lora", quant="none")):
        plain = replace(way, quant=None, sequence=32)
        found = estimate(of("llama", fp8), replace(way, sequence=32))
        assert found.peak_allocated_bytes == estimate(of("llama", None), plain).peak_allocated_bytes


def test_no_advice_quantizes_what_is_quantized():
    """Advice keeps the checkpoint as it is stored, or returns to that."""
    settings = [{"quant_method": "gptq", "bits": 4}, {"quant_method": "fp8"},
                {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"load_in_8bit": True},
                COMPRESSED["int8"]]  # fmt: skip
    for each in settings:
        shape = of("llama", each)
        for plan in (
            RunPlan(sequence=64),
            replace(INFERENCE, sequence=512),
            RunPlan(method="full", quant="none"),
        ):
            if plan.quant and not shape.packing.dequantizes:
                continue
            found = estimate(shape, plan)
            advice = advise(found, lambda changed, shape=shape: estimate_peaks(shape, changed))
            assert advice
            for one in advice:
                assert one.plan.quant in (shape.packed_as, found.plan.quant), one.change
            offered = [c for c, _ in candidates(shape, found.plan) if "quant" in c]
            assert all(c["quant"] == shape.packed_as for c in offered)


@pytest.mark.parametrize(
    ("family", "settings", "gpus"),
    [("llama", {"quant_method": "fp8", "weight_block_size": [32, 32]}, ("A100 80", "H100 SXM")),
     ("gpt_oss", MXFP4, ("V100 16", "T4"))],
)  # fmt: skip
def test_a_checkpoint_is_unpacked_on_a_gpu_without_its_products(family, settings, gpus):
    shape = of(family, settings)
    old, new = (estimate(shape, INFERENCE, find_device(name)) for name in gpus)
    assert old.plan.quant == "none"
    assert new.plan.quant == "stored"
    weights = [next(t.bytes for t in e.components if t.name == "weights") for e in (old, new)]
    assert weights[0] > weights[1]


def test_mxfp4_packs_the_experts_alone_as_their_class_does():
    shape, plain = of("gpt_oss", MXFP4), of("gpt_oss", None)
    with torch.device("meta"):
        module = Mxfp4GptOssExperts(config_of("gpt_oss"))
    real = {name: p.nbytes for name, p in module.named_parameters()}
    found, stem = estimated(shape), "model.layers.0.mlp.experts."
    assert {name: found[f"{stem}{name}"] for name in real} == real
    codes = {name: nbytes for name, nbytes in real.items() if "bias" not in name}
    # An exponent for each 32 of them, as config.json's quant_method says.
    scales = {name: found[f"{stem}{name}_scale"] for name in codes}
    assert scales == {name: size // 16 for name, size in codes.items()}
    others = {name: entry for name, entry in estimated(plain).items() if "experts" not in name}
    assert others.items() <= found.items()
    steps = [estimate(each, INFERENCE) for each in (shape, plain)]
    made = [found.peak_live_bytes - found.resident_bytes for found in steps]
    assert 0 < made[0] <= made[1]


def gptq_like(codes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """gptqmodel's TorchLinear: a product with the unpacked weight, in the dtype of its scales and
    then in that of the input."""
    weight = codes.to(torch.float16).to(x.dtype)
    return torch.matmul(x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], -1)


INPUTS, OUTPUTS, RANK, BATCH, TOKENS = 512, 1024, 8, 2, 128


def fp8_product(x, weight, *_args, **_more):
    """What DeepGEMM receives and returns (deepgemm_fp8_fp4_linear), without its kernel."""
    rows = x.reshape(-1, x.shape[-1])
    codes = torch.empty(rows.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(len(rows), -(-x.shape[-1] // 128))
    result = torch.empty(len(rows), len(weight), dtype=x.dtype)
    del codes, scales
    return result.view(*x.shape[:-1], len(weight))


def levels(events: Any) -> dict[str, tuple[int, int]]:
    """Phase -> the most bytes alive in it, and those at its end."""
    live, sizes, found, phase = 0, {}, {}, ""
    for event in events:
        if event[0] == PHASE:
            phase = str(event[1])
            found[phase] = (live, live)
        elif event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
            live += event[2]
        elif event[0] == FREE:
            live -= sizes.pop(event[1], 0)
        found[phase] = (max(found[phase][0], live), live)
    return found


def test_a_layer_with_an_adapter_takes_what_the_layers_of_peft_take(monkeypatch):
    """Forward and backward pass of one layer, byte by byte at every phase."""
    from peft import LoraConfig
    from peft.tuners.lora.awq import AwqLoraLinear
    from peft.tuners.lora.gptq import GPTQLoraLinear
    from peft.tuners.lora.layer import Linear as LoraLinear
    from transformers.integrations import finegrained_fp8

    monkeypatch.setattr(finegrained_fp8, "fp8_linear", fp8_product)
    fp8 = finegrained_fp8.FP8Linear(INPUTS, OUTPUTS, (128, 128)).requires_grad_(False)
    cases = {
        "fp8": (LoraLinear, fp8, {"quant_method": "fp8"}),
        "gptq": (
            GPTQLoraLinear,
            Packed(gptq_like, INPUTS, OUTPUTS),
            {"quant_method": "gptq", "bits": 4},
        ),
        "awq": (AwqLoraLinear, Packed(AwqLike.apply, INPUTS, OUTPUTS), {"quant_method": "awq"}),
    }
    failed = []
    for name, (lora, layer, settings) in cases.items():
        module = lora(layer, "default", config=LoraConfig(), r=RANK, lora_alpha=RANK)
        module.lora_A.float()
        module.lora_B.float()
        real = _step_of(module)
        ours = _step_on_tape(settings)
        if real != ours:
            failed.append((name, real, ours))
    assert not failed


def _step_of(module: Any) -> dict[str, tuple[int, int]]:
    x = torch.zeros(BATCH, TOKENS, INPUTS, dtype=torch.bfloat16, requires_grad=True)
    tracker = Tracker("cpu")
    with tracker:
        tracker.phase(Phase.LOAD)
        held = [x.view_as(x), *(p.view_as(p) for p in module.parameters() if p.requires_grad)]
        tracker.phase(Phase.FORWARD)
        y = module.train()(x)
        tracker.phase(Phase.BACKWARD)
        y.backward(torch.empty_like(y))
        tracker.phase(Phase.BETWEEN)
        del held
    return _of_step(tracker.events())


def _step_on_tape(settings: dict[str, Any]) -> dict[str, tuple[int, int]]:
    config = config_of("llama").to_dict() | {
        "hidden_size": INPUTS, "intermediate_size": OUTPUTS, "dtype": "bfloat16",
        "quantization_config": settings,
    }  # fmt: skip
    shape = shape_from_config(config)
    asked = RunPlan(batch=BATCH, sequence=TOKENS, lora_rank=RANK, autocast=False,
                    lora_targets=("up_proj",), checkpointing=False)  # fmt: skip
    plan = resolve(asked, shape.dtype, shape.packed_as)
    tape = Tape()
    tape.phase(Phase.LOAD)
    weights = Model(shape, plan).layers[0]
    weights.load(tape)
    weights.adapt(tape)
    x = tape.leaf(BATCH * TOKENS * INPUTS, "bf16", "x", trained=True)
    tape.phase(Phase.FORWARD)
    y = project(weights, shape.layers[0].mlp.up, x)
    tape.phase(Phase.BACKWARD)
    backward(tape, y, tape.new(y.elements, y.dtype, "gradient"))
    tape.phase(Phase.BETWEEN)
    return _of_step(tape.events)


def _of_step(events: Any) -> dict[str, tuple[int, int]]:
    found = levels(events)
    before = found[Phase.LOAD.value][1]
    return {
        phase: (most - before, end - before)
        for phase, (most, end) in found.items()
        if phase in (Phase.FORWARD, Phase.BACKWARD)
    }


def test_a_plain_checkpoint_has_no_packing():
    assert packing_of({}) is None
    assert packing_of({"quantization_config": {}}) is None
    assert of("llama", None).packed_as is None
