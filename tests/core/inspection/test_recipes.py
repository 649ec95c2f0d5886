"""Recipes: their exact text, what they tell, and the libraries that read them."""

import json

import numpy as np
import pytest
from every import every, over

from qtui_core.errors import UsageError
from qtui_core.inspection.recipes.llama_cpp import llama_quantize
from qtui_core.inspection.recipes.modules import bitsandbytes, llm_compressor, torchao, vllm
from qtui_core.inspection.recipes.recipe import UNQUANTIZED, RecipeTensor
from qtui_core.inspection.recipes.targets import TARGETS, target_of_export
from qtui_core.quant import quantize
from qtui_core.schemes.scheme import Scheme


def tensor(name, scheme, rows=128, columns=256, dtype="BF16"):
    return RecipeTensor(name, Scheme.parse(scheme) if scheme else None, rows, columns, dtype)


def ggml(tensors, family="llama"):
    pytest.importorskip("gguf")
    return llama_quantize(tensors, family)


SCHEMES = [
    "int2", "int3", "int4", "int4:asym", "int4:asym:zpfloat", "int5", "int6", "int7", "int8",
    "int8:tensor", "int8:group32", "int4:group32:signed", "int4:column", "int8:outliers6.0",
    "int4:stochastic", "e4m3", "e4m3:row", "e4m3:tile128x128", "e5m2", "e3m2", "e2m1", "nf4",
    "nf4:dq", "fp4", "nf4:block128", "mxfp4", "mxfp4:even", "mxfp6-e3m2",
    "mxfp8-e4m3", "mxint8", "nvfp4", "ternary", "bf16", "fp16", "tf32",
]  # fmt: skip
LAYER = "model.layers.0."
SMALL = (
    tensor("model.embed_tokens.weight", None),
    tensor(f"{LAYER}self_attn.q_proj.weight", "int4:group64:full"),
    tensor(f"{LAYER}mlp.up_proj.weight", "int4:group64:full"),
    tensor(f"{LAYER}mlp.down_proj.weight", "e4m3:row"),
    tensor("lm_head.weight", None),
)
NF4 = tuple(
    tensor(each.name, {"int4:group64:full": "nf4:dq", "e4m3:row": "int8:row"}.get(str(each.scheme)))
    for each in SMALL
)


def test_llama_quantize_takes_a_regular_expression_and_a_type_a_line():
    assert ggml(SMALL).text == (
        "^token_embd\\.weight$=bf16\n"
        "^blk\\.0\\.attn_q\\.weight$=q4_0\n"
        "^blk\\.0\\.ffn_up\\.weight$=q4_0\n"
        "^blk\\.0\\.ffn_down\\.weight$=q8_0\n"
        "^output\\.weight$=bf16\n"
    )


def test_llm_compressor_takes_groups_of_modules():
    assert llm_compressor(SMALL).text == (
        "quant_stage:\n"
        "  quant_modifiers:\n"
        "    QuantizationModifier:\n"
        "      ignore:\n"
        '        - "lm_head"\n'
        "      config_groups:\n"
        "        group_0:\n"
        "          weights: {num_bits: 4, type: int, symmetric: true, strategy: group, "
        "group_size: 64}\n"
        "          targets:\n"
        '            - "model.layers.0.self_attn.q_proj"\n'
        '            - "model.layers.0.mlp.up_proj"\n'
        "        group_1:\n"
        "          weights: {num_bits: 8, type: float, symmetric: true, strategy: channel}\n"
        "          targets:\n"
        '            - "model.layers.0.mlp.down_proj"\n'
    )


def test_bitsandbytes_takes_one_type_and_a_list_of_modules_to_skip():
    recipe = bitsandbytes(NF4)
    assert json.loads(recipe.text) == {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "llm_int8_skip_modules": [f"{LAYER}mlp.down_proj", "lm_head"],
    }
    (told,) = recipe.stand_ins
    assert (told.tensor, told.instead) == (f"{LAYER}mlp.down_proj.weight", UNQUANTIZED)


def test_vllm_takes_a_type_and_a_list_to_ignore_or_a_type_for_each():
    only = tuple(
        tensor(each.name, "e4m3:row" if each.scheme and "mlp" in each.name else None)
        for each in SMALL
    )
    assert json.loads(vllm(only).text) == {
        "linear": "fp8_per_channel",
        "ignore": [f"{LAYER}self_attn.q_proj", "lm_head"],
    }
    mixed = (*only[:3], tensor(f"{LAYER}mlp.down_proj.weight", "mxfp4"), only[4])
    assert "vLLM does not load this model" not in "".join(llm_compressor(mixed).notes)
    assert json.loads(vllm(mixed).text) == {
        "targets": {
            r"re:^model\.layers\.0\.mlp\.up_proj$": "fp8_per_channel",
            r"re:^model\.layers\.0\.mlp\.down_proj$": "mxfp4",
        }
    }


def test_vllm_gets_one_type_for_the_modules_that_it_fuses():
    def shards(q, k, v):
        schemes = {"q_proj": q, "k_proj": k, "v_proj": v}
        names = {name: tensor(f"{LAYER}self_attn.{name}.weight", s) for name, s in schemes.items()}
        recipe = vllm(tuple(names.values()))
        return json.loads(recipe.text), {each.tensor.split(".")[-2] for each in recipe.stand_ins}

    found, told = shards("mxfp4", "mxfp4", "e4m3:row")
    assert (found["linear"], found["ignore"], told) == ("fp8_per_channel", [], {"q_proj", "k_proj"})
    parts = [tensor(f"{LAYER}self_attn.{name}_proj.weight", "int4:group64:full") for name in "qk"]
    other = tensor(f"{LAYER}self_attn.v_proj.weight", "int8:row:full")
    assert not llm_compressor(parts).notes
    assert llm_compressor([*parts, other]).notes[-1].startswith("vLLM does not load this model")
    found, told = shards("mxfp4", None, "mxfp4")
    assert len(found["ignore"]) == 3
    assert told == {"q_proj", "v_proj"}


def test_vllm_gets_experts_as_one_module():
    def experts(*schemes):
        names = [f"{LAYER}mlp.experts.{n}.down_proj.weight" for n in range(len(schemes))]
        return json.loads(vllm([tensor(*pair) for pair in zip(names, schemes, strict=True)]).text)

    name = f"{LAYER}mlp.experts"
    both = {"linear": "fp8_per_channel", "moe": "fp8_per_channel", "ignore": []}
    assert experts("e4m3:row", "e4m3:row") == both
    assert experts("e4m3:row", None) == {"linear": "fp8_per_channel", "ignore": [name]}


def test_schemes_that_no_tool_has_are_listed_with_their_tensors():
    sentences = llm_compressor(NF4).sentences("llm-compressor")
    assert sentences[0] == (
        "nf4:block64:dq of 2 tensors becomes int4:group64:asym (llm-compressor has "
        "no such type): 'model.layers.0.self_attn.q_proj.weight', "
        "'model.layers.0.mlp.up_proj.weight'."
    )
    short = (tensor(f"{LAYER}mlp.down_proj.weight", "int4:group128:full", columns=704),)
    for make in (llm_compressor, torchao):
        (told,) = make(short).stand_ins
        assert told.instead == UNQUANTIZED
        assert told.why == "rows of 704 are no multiple of the group 128"


def test_every_scheme_is_expressed_or_listed():
    """A recipe never changes a scheme silently: it has the scheme's own numbers, or a stand-in."""
    expressed = {
        "llama-quantize": {"int4:group32:signed", "int8:group32", "mxfp4", "bf16", "fp16", "tf32"},
        "llm-compressor": {"int4:group64:asym", "e4m3:tensor", "e4m3:row", "e4m3:tile128x128",
                           "mxfp4:even", "nvfp4", "bf16"},
        "torchao": {"int4:group64:asym", "e4m3:tensor", "e4m3:row", "e5m2:tensor", "bf16"},
        "bitsandbytes": {"nf4:block64", "nf4:block64:dq", "fp4:block64", "int8:row", "bf16"},
        "vllm": {"e4m3:tensor", "e4m3:row", "e4m3:tile128x128", "mxfp4", "mxfp8-e4m3",
                 "bf16"},
    }  # fmt: skip
    pytest.importorskip("gguf")
    for name, exact in expressed.items():
        found = set()
        for text in SCHEMES:
            one = (tensor(f"{LAYER}mlp.down_proj.weight", text),)
            if not TARGETS[name].recipe(one, {"model_type": "llama"}).stand_ins:
                found.add(str(one[0].scheme))
        assert found == exact, name


@over("text", SCHEMES)
@over("columns", (256, 704, 70))
def test_types_of_ggml_are_those_of_the_library(text, columns):
    gguf = pytest.importorskip("gguf")
    one = tensor("lm_head.weight", text, columns=columns)
    name, _, kind = ggml([one]).text.strip().partition("=")
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    assert one.columns % block == 0
    assert name == r"^output\.weight$"


def test_experts_that_gguf_stacks_get_the_type_with_the_most_bits():
    names = [f"{LAYER}block_sparse_moe.experts.{n}.w1.weight" for n in range(2)]
    given = [tensor(names[0], "int4:group32:signed"), tensor(names[1], "int8:group32")]
    recipe = ggml(given, "mixtral")
    assert recipe.text == "^blk\\.0\\.ffn_gate_exps\\.weight$=q8_0\n"
    (told,) = recipe.stand_ins
    assert (told.tensor, told.instead) == (names[0], "q8_0")


@over(
    ("columns", "scheme", "expected"),
    [(256, "int6", "q6_k"), (704, "int6", "q8_0"), (70, "int6", "f16"), (704, "int4:asym", "q4_1")],
)
def test_a_type_of_ggml_has_whole_blocks(columns, scheme, expected):
    recipe = ggml([tensor("lm_head.weight", scheme, columns=columns)])
    assert recipe.text.endswith(f"={expected}\n")


def test_a_number_with_thousands_of_digits_is_no_layer():
    recipe = ggml([tensor(f"model.layers.{'9' * 5000}.mlp.weight", "int8")])
    assert recipe.stand_ins[0].why.startswith("GGUF has no name for it")


def test_a_model_of_gguf_is_for_llama_quantize():
    given = (tensor("blk.0.attn_q.weight", "int8:group32"), tensor("blk.0.attn_k.weight", None))
    text = "^blk\\.0\\.attn_q\\.weight$=q8_0\n^blk\\.0\\.attn_k\\.weight$=bf16\n"
    assert ggml(given).text == text
    TARGETS["llama-quantize"].refuse_names(each.name for each in given)
    for name in set(TARGETS) - {"llama-quantize"}:
        with pytest.raises(UsageError, match="those of GGUF"):
            TARGETS[name].refuse_names(each.name for each in given)


def test_the_tools_are_refused_by_name():
    assert target_of_export("vllm") == (TARGETS["vllm"], "vllm.json")
    assert target_of_export("VLLM=a=b.json") == (TARGETS["vllm"], "a=b.json")
    with pytest.raises(UsageError, match="'vlm' is no tool"):
        target_of_export("vlm=x")


# The libraries.

TORCHAO = ("int4:group64:full", "int4:group64:asym", "int3:group32:full", "int2:row:full",
           "int8:row:full", "int8:tensor:full", "int8:group64:full", "int8:row:asym",
           "int6:group64:asym", "e4m3:row", "e4m3:tensor", "e4m3:group64", "e5m2:row")  # fmt: skip


def test_torchao_quantizes_by_its_recipe_to_the_numbers_that_were_measured():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.core.config import config_from_dict
    from torchao.quantization import quantize_

    model = torch.nn.ModuleDict({str(n): torch.nn.Linear(128, 64) for n in range(len(TORCHAO))})
    model["kept"] = torch.nn.Linear(128, 8)
    before = {name: each.weight.detach().clone() for name, each in model.items()}
    tensors = [tensor(f"{n}.weight", text, 64, 128, "F32") for n, text in enumerate(TORCHAO)]
    recipe = torchao([*tensors, tensor("kept.weight", None, 8, 128, "F32")])
    assert recipe.stand_ins == ()
    quantize_(model, config_from_dict(json.loads(recipe.text)), filter_fn=None)
    assert torch.equal(model["kept"].weight, before["kept"])

    def check(n, text):
        expected = quantize(before[str(n)].numpy(), Scheme.parse(text)).dequantize()
        found = model[str(n)].weight.dequantize().float().numpy()
        np.testing.assert_array_equal(found, expected)

    every(enumerate(TORCHAO), check)


def test_compressed_tensors_takes_the_groups_and_targets():
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors")
    yaml = pytest.importorskip("yaml")
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    texts = ("int4:group64:full", "int8:row:full", "int4:group64:asym", "int8:tensor:full",
             "e4m3:row", "e4m3:tensor", "e4m3:tile128x128", "mxfp4:even", "nvfp4",
             "mxfp8-e4m3")  # fmt: skip
    model = torch.nn.ModuleDict({f"m{n}": torch.nn.Linear(128, 128) for n in range(len(texts))})
    model["kept"] = torch.nn.Linear(128, 8)
    tensors = [tensor(f"m{n}.weight", text, 128, 128) for n, text in enumerate(texts)]
    recipe = llm_compressor([*tensors, tensor("kept.weight", None)])
    found = yaml.safe_load(recipe.text)["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    config = QuantizationConfig(
        quant_method="compressed-tensors", format="fakequant",
        config_groups=found["config_groups"], ignore=found["ignore"],
    )  # fmt: skip
    apply_quantization_config(model, config)
    assert not hasattr(model["kept"], "quantization_scheme")

    def check(n, text):
        weights, scheme = model[f"m{n}"].quantization_scheme.weights, Scheme.parse(text)
        assert weights.num_bits == scheme.bits
        assert weights.symmetric == scheme.symmetric
        assert (weights.type == "float") == (not scheme.format.startswith("int"))

    every(enumerate(texts), check)


def test_transformers_takes_the_options_of_bitsandbytes_and_skips_the_list():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    bnb = pytest.importorskip("bitsandbytes")
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear

    for text, layer in (("nf4:dq", bnb.nn.Linear4bit), ("int8:row", bnb.nn.Linear8bitLt)):
        names = ("a", "lm_head", "aa", "lm_head2")
        model = torch.nn.ModuleDict({name: torch.nn.Linear(64, 64) for name in names})
        given = {"a": text, "aa": text, "lm_head2": None, "lm_head": None}
        recipe = bitsandbytes([tensor(f"{n}.weight", s, 64, 64) for n, s in given.items()])
        config = transformers.BitsAndBytesConfig(**json.loads(recipe.text))
        assert config.quantization_method() == {"nf4:dq": "nf4", "int8:row": "llm_int8"}[text]
        replace_with_bnb_linear(model, config.llm_int8_skip_modules, config)
        quantized = {name for name, module in model.items() if isinstance(module, layer)}
        assert quantized == {"a", "aa"}


def test_export_writes_the_files_and_tells_what_is_in_them(qtui, tmp_path):
    pytest.importorskip("gguf")
    args = ("inspect", "demo", "--sensitivity", "--objective", "weights", "--no-judge")
    args += ("--schemes", "int4:group64:full,nf4:dq", "--tensors", "*.0.*")
    exports = [part for name in TARGETS for part in ("--export", name)]
    done = qtui(*args, *exports, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assigned = {row["tensor"] for row in data["sensitivity"]["assignment"] if row["scheme"]}
    for entry, (name, target) in zip(data["exports"], TARGETS.items(), strict=True):
        assert entry["file"] == f"{name}{target.suffix}"
        assert entry["file"] in entry["use"]
        assert (tmp_path / entry["file"]).read_text()
        assert {each["tensor"] for each in entry["stand_ins"]} <= assigned
    again = qtui(*args, "--export", "vllm", cwd=tmp_path)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


@over(
    ("args", "words"),
    [
        (("--export", "vllm"), "is for --sensitivity"),
        (("--sensitivity", "--export", "nothing"), "is no tool"),
        (("--sensitivity", "--export", "vllm=-"), "needs a file"),
        (("--sensitivity", "--export", "vllm=a", "--export", "torchao=a"), "a second time"),
    ],
)
def test_what_cannot_be_exported_is_refused(qtui, tmp_path, args, words):
    done = qtui("inspect", "demo", *args, cwd=tmp_path)
    assert (done.returncode, words in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
