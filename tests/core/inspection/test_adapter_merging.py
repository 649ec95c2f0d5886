"""Adapters read and merged: held against peft's own merge_and_unload, and against bad files."""

import json
import re

import numpy as np
import pytest
from adapter_models import dyadic, lora, write_adapter
from every import over
from lazy_imports import LazyImport
from packed_models import gptq_layer, save_model, under

from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.merging import merge_adapter
from qtui_core.inspection.adapters.reading import read_adapter
from qtui_core.models import open_model
from qtui_core.models.files.arrays import RowReader
from qtui_core.models.opening import open_adapter

torch = LazyImport("torch")
peft = LazyImport("peft")
transformers = LazyImport("transformers")

Q = "model.layers.0.self_attn.q_proj"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def merged(base, adapter):
    """Name -> the merged weight, in the shape in which it is stored."""
    with open_model(str(base)) as source:
        merge = merge_adapter(source, read_adapter(open_adapter(str(adapter))))
        found = {}
        for name, each in merge.weights.items():
            rows = RowReader(source, name)
            strip = 0, rows.shape[0]
            values = each.merging([strip])(rows.rows(*strip), True)
            found[name] = values.reshape(each.info.shape)
        return found


def refused(words, base, adapter):
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        merged(base, adapter)
    return str(caught.value)


@pytest.fixture
def base(tmp_path):
    rng = np.random.default_rng(3)
    weights = {f"{Q}.weight": dyadic(rng, 12, 16), "model.norm.weight": dyadic(rng, 16)}
    return save_model(tmp_path / "base", weights, **CONFIG)


def test_a_linear_layer_gets_b_times_a_scaled(base, tmp_path):
    parts = lora(Q, 12, 16)
    found = merged(base, write_adapter(tmp_path / "a", parts))
    a, b = parts[f"{Q}.lora_A.weight"], parts[f"{Q}.lora_B.weight"]
    with open_model(str(base)) as source:
        weight = np.frombuffer(source.read_rows(f"{Q}.weight", 0, 12), "<f4").reshape(12, 16)
        np.testing.assert_array_equal(found[f"{Q}.weight"], weight + 2 * (b @ a))


def test_scales_follow_alpha_rank_and_patterns(tmp_path):
    """alpha / r, alpha / sqrt(r) of rsLoRA, and the first pattern that matches a module's end."""

    def scale(config, module=Q, rank=4):
        folder = write_adapter(tmp_path / str(len(list(tmp_path.iterdir()))),
                               lora(module, 12, 16, rank), config)  # fmt: skip
        return read_adapter(open_adapter(str(folder))).modules[module].scale

    assert scale({"lora_alpha": 6}) == 1.5
    assert scale({"lora_alpha": 6, "use_rslora": True}) == 3
    assert scale({"rank_pattern": {"q_proj": 2}}, rank=2) == 4
    assert scale({"alpha_pattern": {"k_proj": 1, "self_attn.q_proj": 2}}) == 0.5
    assert scale({"alpha_pattern": {r"^model\.layers\.\d+\.self_attn.q_proj": 12}}) == 3
    assert scale({"alpha_pattern": {"proj": 2}}) == 2, "a part of a word is no match"


def test_dora_gives_the_sum_rows_of_trained_lengths(base, tmp_path):
    parts, lengths = lora(Q, 12, 16), np.linspace(0.5, 2, 12, dtype=np.float32)
    tensors = {**parts, f"{Q}.lora_magnitude_vector": lengths}
    found = merged(base, write_adapter(tmp_path / "a", tensors, {"use_dora": True}))
    plain = merged(base, write_adapter(tmp_path / "b", parts))
    rows, sums = found[f"{Q}.weight"], plain[f"{Q}.weight"]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), lengths, rtol=1e-6)
    np.testing.assert_allclose(rows / lengths[:, None],
                               sums / np.linalg.norm(sums, axis=1)[:, None], rtol=1e-5)  # fmt: skip


def test_what_replaces_weights_and_biases_is_taken(base, tmp_path):
    norm = np.arange(16, dtype=np.float32)
    tensors = {**lora(Q, 12, 16), "model.norm.weight": norm, "score.weight": np.ones((2, 16), "f4")}
    folder = write_adapter(tmp_path / "a", tensors)
    np.testing.assert_array_equal(merged(base, folder)["model.norm.weight"], norm)
    with open_model(str(base)) as source:
        merge = merge_adapter(source, read_adapter(open_adapter(str(folder))))
        assert merge.added == ("score.weight",)
        assert "score.weight" in merge.notes[0]


A, B = lora(Q, 12, 16).values()
NAN = np.where(np.arange(16) == 2, np.nan, A).astype("f4")
LENGTHS = f"{Q}.lora_magnitude_vector"
BAD = {  # what is said -> (tensors beside those of a good adapter, settings)
    "values are NaN or infinite": ({f"{Q}.lora_A.weight": NAN}, {}),
    "without values": ({f"{Q}.lora_A.weight": A[:0]}, {}),
    "floating-point numbers": ({f"{Q}.lora_A.weight": A.astype(np.int8)}, {}),
    "of a convolution": ({f"{Q}.lora_A.weight": A.reshape(4, 4, 4)}, {}),
    "where the rank is 8": ({}, {"r": 8}),
    "where the rank is 4": ({LENGTHS: np.ones(3, "f4")}, {"use_dora": True}),
    "and lora_magnitude_vector belong": ({}, {"use_dora": True}),
    "where lora_A.weight, lora_B.weight belong": ({LENGTHS: np.ones(12, "f4")}, {}),
    "is of another base": ({f"{Q}.lora_A.weight": A[:, :9]}, {}),
    "one that was resized": ({"model.norm.weight": np.ones(3, "f4")}, {}),
    "has no weight of that name": (lora("model.layers.7.self_attn.q_proj", 12, 16), {}),
    "twice: which one counts": (lora(f"model.{Q}", 12, 16), {}),
    "too long to be real": (lora("a." * 200, 12, 16), {}),
    "lora_C.weight', which qtui does not merge": ({f"{Q}.lora_C.weight": A}, {}),
    "embedding_A', which qtui does not merge": ({"model.embed_tokens.lora_embedding_A": A}, {}),
    "lora_bias set, which qtui does not merge": ({}, {"lora_bias": True}),
    "is 'IA3' (peft_type": ({}, {"peft_type": "IA3"}),
    "changes the base too": ({}, {"init_lora_weights": "pissa_niter_4"}),
    "a whole number above 0": ({}, {"r": 0}),
    "r = 'True'": ({}, {"r": True}),
    "a number above 0": ({}, {"lora_alpha": "x"}),
    "true or false": ({}, {"use_rslora": "yes"}),
    "an object of names": ({}, {"rank_pattern": [1]}),
    "no regular expression": ({}, {"alpha_pattern": {"(": 1}}),
    "with fewer": ({}, {"alpha_pattern": {"(a+)+": 1}}),
    "fewer repetitions": ({}, {"alpha_pattern": {".*.*.*x": 1}}),
}  # fmt: skip


@over(("words", "changes"), BAD.items())
def test_a_bad_adapter_is_one_sentence(base, tmp_path, words, changes):
    tensors, config = changes
    adapter = write_adapter(tmp_path / "a", {**lora(Q, 12, 16), **tensors}, config)
    assert refused(words, base, adapter).endswith(".")


def test_files_that_are_no_adapter_are_one_sentence_each(base, tmp_path):
    def folder(name, **files):
        made = tmp_path / name
        made.mkdir()
        for file, content in files.items():
            (made / file.replace("__", ".")).write_bytes(content)
        return made

    settings = json.dumps({"peft_type": "LORA"}).encode()
    good = write_adapter(tmp_path / "x", lora(Q, 12, 16)) / "adapter_model.safetensors"
    for words, path in {
        "not a hub id": tmp_path / "missing",
        "has no adapter_config.json (it is empty)": folder("empty"),
        "which --against compares": folder("whole", config__json=b"{}"),
        "is a pickle": folder("bin", adapter_config__json=settings, adapter_model__bin=b""),
        "load the adapter with peft": folder("alone", adapter_config__json=settings),
        "not valid JSON": folder("text", adapter_config__json=b"r: 8",
                                 adapter_model__safetensors=good.read_bytes()),
        "give the folder": tmp_path / "base" / "config.json",
        "no tensors": write_adapter(tmp_path / "none", {}),
    }.items():  # fmt: skip
        refused(words, base, path)


def test_bases_that_are_not_merged_are_refused(tmp_path):
    adapter = write_adapter(tmp_path / "a", lora(Q, 64, 128))
    whole = save_model(tmp_path / "i", {f"{Q}.weight": np.ones((64, 128), np.int8)}, **CONFIG)
    refused("of 16 or 32 bits", whole, adapter)
    _, layer = gptq_layer(np.random.default_rng(0), 64, 128, 4, 32)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    refused("--trained-on", save_model(tmp_path / "q", under(Q, layer), settings), adapter)
    full = np.full((64, 128), 6e4, np.float16)
    small = save_model(tmp_path / "h", {f"{Q}.weight": full}, **CONFIG)
    large = write_adapter(tmp_path / "l", lora(Q, 64, 128), {"lora_alpha": 1e8})
    refused("merged and stored in F16: find out", small, large)


def _llama():
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_bias=True,
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _gpt2():
    config = transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=32)
    return transformers.GPT2LMHeadModel(config)


LINEAR = ["q_proj", "v_proj", "down_proj"]
PEFT_CASES = {
    "plain": (_llama, {"target_modules": LINEAR, "r": 4, "lora_alpha": 6}),
    "rslora": (_llama, {"target_modules": LINEAR, "r": 8, "use_rslora": True}),
    "patterns": (
        _llama,
        {"target_modules": LINEAR, "rank_pattern": {"v_proj": 2, r"layers\.1\.mlp.down_proj": 16},
         "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3, "v_proj": 24}},
    ),
    "conv1d": (_gpt2, {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "saved": (_llama, {"target_modules": LINEAR, "modules_to_save": ["lm_head", "norm"]}),
    "bias": (_llama, {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "dora": (_llama, {"target_modules": LINEAR, "use_dora": True}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", PEFT_CASES)
def test_weights_are_those_of_peft(tmp_path, name, dtype):
    """Bit for bit, with updates whose products float32 holds exactly; DoRA's norm is summed in
    another order, so that it may differ in the last bit of a sum."""
    make, settings = PEFT_CASES[name]
    torch.manual_seed(0)
    model = make().to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "base")
    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad and "magnitude" not in parameter_name:
                parameter.copy_(torch.from_numpy(dyadic(rng, *parameter.shape)))
            elif parameter.requires_grad:
                parameter.mul_(1.25)
    model.save_pretrained(tmp_path / "adapter")
    base = make().from_pretrained(tmp_path / "base", dtype=getattr(torch, dtype))
    before = {key: value.clone() for key, value in base.state_dict().items()}
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    whole = loaded.merge_and_unload().state_dict()
    found = merged(tmp_path / "base", tmp_path / "adapter")
    assert len(found) >= 2 or name == "dora"
    for key, value in before.items():
        changed = not torch.equal(value, whole[key])
        assert changed <= bool({key, key.removeprefix("transformer.")} & found.keys()), key
    for key, values in found.items():
        theirs = whole.get(key, whole.get(f"transformer.{key}")).float().numpy()
        if name == "dora":
            ulp = {"float32": 4e-7, "bfloat16": 0.008, "float16": 1e-3}[dtype]
            np.testing.assert_allclose(values, theirs, rtol=ulp, atol=1e-9)
        else:
            np.testing.assert_array_equal(values, theirs, err_msg=key)
