"""A model that runs layer by layer, with weights changed, against the whole model of transformers
in float32 whose weights were replaced."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import running_models
from every import every, over
from gguf_models import write_gguf
from lazy_imports import LazyImport

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.evaluation.changes import (
    OtherCheckpoint,
    WeightChange,
    assigned,
    read_assignment,
    uniform,
)
from qtui_core.evaluation.settings import EvaluationSettings, NamedAssignment
from qtui_core.evaluation.summary import summarize
from qtui_core.inspection.inspect import inspect_model, is_quantizable
from qtui_core.job import Cancelled, Job
from qtui_core.models import open_model
from qtui_core.quant import quantize
from qtui_core.schemes.scheme import Scheme

torch = LazyImport("torch")
transformers = LazyImport("transformers")
streamed = LazyImport("qtui_core.evaluation.streamed")
evaluate = LazyImport("qtui_core.evaluation.evaluate", "evaluate")

SMALL = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
#: Name of the configuration -> its settings, and the dtype of the file.
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": ({}, "float32"),
    "Qwen3": ({"tie_word_embeddings": True, "head_dim": 16}, "bfloat16"),
    "Gemma2": ({"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}, "bfloat16"),
    "Granite": ({"logits_scaling": 4.0, "residual_multiplier": 0.5}, "float32"),
    "Cohere": ({"logit_scale": 0.25}, "float32"),
    "Mixtral": (MOE, "float32"),
    "GptOss": ({**MOE, "head_dim": 16, "sliding_window": 8}, "float32"),
    "GPTNeoX": ({}, "float16"),
    "Bloom": ({"n_layer": 2, "n_head": 4}, "float32"),
    "OPT": ({"ffn_dim": 96, "word_embed_proj_dim": 64}, "float32"),
    "Mamba": ({}, "float32"),
}


def write(folder: Path, family: str) -> Path:
    settings, dtype = FAMILIES[family]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too, so that a lost one shows
            parameter += 0.05 * torch.randn_like(parameter)
    return running_models.write(model, folder, getattr(torch, dtype))


def whole(folder: Path) -> Any:
    """The model of transformers in float32, all of it in memory."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tokens(windows: int = 3, length: int = 40) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (windows, length)).astype(np.int64)


def logits_of(model: Any, ids: np.ndarray, scored: int) -> Any:
    with torch.inference_mode():
        found = model(input_ids=torch.from_numpy(ids), use_cache=False).logits
    return found[:, -scored - 1 : -1]


def check(found: Any, expected: Any) -> None:
    scale = float(expected.abs().max())
    assert torch.isfinite(expected).all()
    assert float((found - expected).abs().max()) < 3e-6 * scale


@contextmanager
def weights_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The weights of a saved model, which are saved again as they are left."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    yield weights
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def original(source: Any) -> Any:
    return streamed.ForwardPass(WeightChange("original", source))


def check_quantized(folder: Path, scheme: str, scored: int = 20) -> Any:
    """Compares the original and one scheme with the whole model. Returns the model in layers."""
    source, ids = open_model(folder), tokens()
    model = streamed.StreamedModel(source, "cpu")
    check(model.logits(ids, scored, original(source)), logits_of(whole(folder), ids, scored))
    found = model.logits(ids, scored, streamed.ForwardPass(uniform(Scheme.parse(scheme), source)))
    check(found, logits_of(quantize_whole(whole(folder), scheme), ids, scored))
    return model


@pytest.mark.slow
def test_every_family_runs_layer_by_layer_as_it_does_whole(tmp_path) -> None:
    def one(family: str) -> None:
        assert check_quantized(write(tmp_path / family, family), "int4:row", 25).units >= 4

    every([name for name in FAMILIES if hasattr(transformers, f"{name}Config")], one)


def quantized(name: str, value: Any, scheme: str) -> Any:
    """A weight as a scheme keeps it. Experts in one tensor are matrices one above the other."""
    stacked = value.dim() == 3 and "experts" in name
    matrix = value.reshape(-1, value.shape[-1]) if stacked else value.reshape(value.shape[0], -1)
    return torch.from_numpy(quantize(matrix, Scheme.parse(scheme)).dequantize()).view(value.shape)


def quantize_whole(model: Any, scheme: str, kept: str = "") -> Any:
    """The model, with every matrix but `kept` as a scheme keeps it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name != kept:
                parameter.copy_(quantized(name, parameter, scheme))
    return model


@over("scheme", ["nf4:dq", "int4:group32:asym", "e4m3:tile128x128", "mxfp4"])
def test_a_scheme_is_applied_to_every_matrix(scheme, tmp_path) -> None:
    folder = running_models.llama(tmp_path, torch.bfloat16, tie_word_embeddings=True)
    check_quantized(folder, scheme)


def test_gpt2_keeps_its_transposed_weights_and_its_tied_head(tmp_path) -> None:
    check_quantized(running_models.gpt2(tmp_path), "int4:row")


@over("scheme", ["int8:token", "e4m3:group128", "int4:tensor", "int8:row:outliers1.0"])
def test_the_inputs_of_quantized_layers_are_rounded_window_by_window(scheme, tmp_path) -> None:
    folder = running_models.llama(tmp_path, hidden_size=128, intermediate_size=256)
    source, ids = open_model(folder), tokens()
    way = Scheme.parse(scheme)
    model = streamed.StreamedModel(source, "cpu")
    changed = uniform(Scheme.parse("int8"), source, ["lm_head*"])
    found = model.logits(ids, 20, streamed.ForwardPass(changed, way))
    expected = quantize_whole(whole(folder), "int8", kept="lm_head.weight")

    def rounded(module: Any, given: Any) -> Any:
        each = [quantize(x.numpy(), way).dequantize() for x in given[0]]
        return (torch.from_numpy(np.stack(each)),)

    for name, module in expected.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(rounded)
    # One window at a time, as a rounded input is all the same for others beside it.
    one_by_one = torch.cat([logits_of(expected, ids[i : i + 1], 20) for i in range(3)])
    # A product's last bit moves a value across a step now and then.
    distance = (found - one_by_one).abs()
    assert float(distance.median()) < 1e-5 * float(one_by_one.abs().max())
    assert float(distance.max()) < 0.05 * float(one_by_one.abs().max())


def test_weights_are_there_only_while_their_layer_runs(tmp_path) -> None:
    folder = running_models.llama(tmp_path, num_hidden_layers=3)
    source = open_model(folder)
    model = streamed.StreamedModel(source, "cpu")
    inner = model.loaded.model
    seen = []

    def loaded() -> set[str]:
        there = [n for n, p in inner.named_parameters() if p.untyped_storage().nbytes() > 8]
        return {name.partition("layers.")[2].partition(".")[0] or name for name in there}

    for layer in inner.model.layers:
        layer.mlp.register_forward_hook(lambda *_: seen.append(loaded()))
    assert loaded() == set()
    model.logits(tokens(), 20, original(source))
    assert seen == [{"0"}, {"1"}, {"2"}]
    assert loaded() == set()
    assert model.unnamed == ()


def test_a_norm_in_float32_is_not_rounded_to_the_dtype_of_the_model(tmp_path) -> None:
    folder = running_models.llama(tmp_path, torch.bfloat16)
    with weights_of(folder) as weights:
        for name in weights:
            if "norm" in name:
                weights[name] = 1.0 + torch.rand(weights[name].shape)
    source, ids = open_model(folder), tokens()
    found = streamed.StreamedModel(source, "cpu").logits(ids, 20, original(source))
    check(found, logits_of(whole(folder), ids, 20))


# Changes of weights


def test_bytes_are_those_of_an_inspection(tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path, torch.bfloat16))
    schemes = [Scheme.parse(t) for t in ("nf4:dq", "int8:row:outliers0.05")]
    totals = inspect_model(source, schemes, full=True).schemes
    for scheme, total in zip(schemes, totals, strict=True):
        change = uniform(scheme, source)
        for weight in streamed.StreamedModel(source, "cpu").weights:
            change.values(weight)
        assert change.nbytes() == total.nbytes, scheme


def test_an_assignment_is_a_report_or_an_object(tmp_path) -> None:
    report = {"sensitivity": {"assignment": [
        {"tensor": "lm_head.weight", "scheme": "int8"},
        {"tensor": "model.embed_tokens.weight", "scheme": None},
    ]}}  # fmt: skip
    plain = {"lm_head.weight": "int8:row", "model.embed_tokens.weight": None}
    for written in (report, plain):
        (tmp_path / "a.json").write_text(json.dumps(written))
        found = read_assignment(str(tmp_path / "a.json"))
        assert {name: s and str(s) for name, s in found.items()} == plain
    source = open_model(running_models.llama(tmp_path / "m"))
    change = assigned("a", found, source)
    head = source.tensor("lm_head.weight")
    assert change.nbytes() == source.nbytes - head.nbytes + 256 * 32 + 256 * 4


@over(
    "written, words",
    [
        ("{", "has no assignment"),
        ("{}", "has no assignment"),
        ('{"sensitivity": null}', "names 'sensitivity', which is no matrix"),
        ('{"sensitivity": {"assignment": 3}}', "has no assignment"),
        ('{"lm_head.weight": 8}', "has no assignment"),
        ('{"lm_head.weight": "int99"}', "int99"),
        ('{"gone.weight": "int8"}', "is no matrix of plain"),
        ('{"model.norm.weight": "int8"}', "is no matrix of plain"),
        ('{"lm_head.weight": "int8:model"}', "int8:tensor"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(written, words, tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path / "m"))
    (tmp_path / "a.json").write_text(written)
    with pytest.raises(UsageError, match=words):
        assigned("a", read_assignment(str(tmp_path / "a.json")), source)


def test_what_is_kept_stays_as_stored(tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path))
    change = uniform(Scheme.parse("int2"), source, ["*head*", "*embed*"])
    weights = streamed.StreamedModel(source, "cpu").weights
    kept = [w.info.name for w in weights if (change.values(w) == w.values()).all()]
    assert set(kept) == {w.info.name for w in weights if not change.changes_inputs(w)}
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"} <= set(kept)
    with pytest.raises(UsageError, match="matches no matrix"):
        uniform(Scheme.parse("int2"), source, ["*nothing*"])
    with pytest.raises(UsageError, match="is left for int2"):
        uniform(Scheme.parse("int2"), source, ["*"])


def test_a_gguf_file_is_no_original_and_says_why(tmp_path) -> None:
    """It predicts the next token, but its tensors are no modules of transformers."""
    config = dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2)
    config |= {"num_hidden_layers": 1, "hidden_size": 64}
    weights = {"model.layers.0.mlp.up_proj.weight": np.ones((64, 64), np.float32)}
    plain = open_model(str(write_gguf(tmp_path / "plain.gguf", weights, config, "F32")))
    with pytest.raises(ModelError, match="is a GGUF file, whose tensors have other names"):
        streamed.StreamedModel(plain, "cpu")
    packed = open_model(str(write_gguf(tmp_path / "packed.gguf", weights, config, "Q8_0")))
    with pytest.raises(UsageError, match="it is quantized already"):
        uniform(Scheme.parse("int4"), packed, [])


def test_another_checkpoint_takes_the_place_of_all_weights(tmp_path) -> None:
    first = open_model(running_models.llama(tmp_path / "a"))
    second = running_models.llama(tmp_path / "b", torch.bfloat16, initializer_range=0.3)
    other, ids = open_model(second), tokens()
    change = OtherCheckpoint(first, other)
    found = streamed.StreamedModel(first, "cpu").logits(ids, 20, streamed.ForwardPass(change))
    check(found, logits_of(whole(second), ids, 20))
    assert change.nbytes() == other.nbytes
    wide = open_model(running_models.llama(tmp_path / "c", intermediate_size=64))
    with pytest.raises(UsageError, match="of the same model"):
        OtherCheckpoint(first, wide)


def in_nf4(folder: Path) -> Path:
    """The linear layers of a Llama in bitsandbytes' NF4 with nested scales, as a checkpoint."""
    bnb = pytest.importorskip("bitsandbytes.functional")
    running_models.llama(folder, torch.bfloat16, hidden_size=64, intermediate_size=128)
    with weights_of(folder) as state:
        for name in [name for name in state if "proj" in name]:
            state[name], packed = bnb.quantize_4bit(
                state[name], blocksize=64, compress_statistics=True, quant_type="nf4"
            )
            state |= {f"{name}.{k}": v for k, v in packed.as_dict(packed=True).items()}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"load_in_4bit": True, "quant_method": "bitsandbytes"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_packed_checkpoint_is_as_far_as_its_scheme(tmp_path) -> None:
    source = open_model(
        running_models.llama(tmp_path / "a", torch.bfloat16, hidden_size=64, intermediate_size=128)
    )
    packed = in_nf4(tmp_path / "b")
    settings = EvaluationSettings(
        schemes=(Scheme.parse("nf4:dq"),), keep=("*head*", "*embed*"), against=str(packed),
        activations=(Scheme.parse("int8:token"),), text=written(tmp_path), window=64,
    )  # fmt: skip
    found = summarize(*told(source, settings), "done")
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [
        "original", "nf4:block64:dq", "nf4:block64:dq + int8:token",
        str(packed), f"{packed} + int8:token",
    ]  # fmt: skip
    for more in ("", " + int8:token"):
        mine, theirs = rows[f"nf4:block64:dq{more}"], rows[f"{packed}{more}"]
        # bitsandbytes sums the offset of the nested scales in another order.
        assert theirs.kl_mean == pytest.approx(mine.kl_mean, rel=2e-2)
        assert theirs.loss == pytest.approx(mine.loss, rel=1e-4)
        # Its files have 1.2 kB of tables and settings for each of 14 tensors besides.
        assert mine.nbytes < theirs.nbytes < mine.nbytes + 14 * 1400
    assert rows["nf4:block64:dq"].kl_mean != rows["nf4:block64:dq + int8:token"].kl_mean
    with pytest.raises(ModelError, match="qtui eval ORIGINAL --against"):
        told(open_model(packed), EvaluationSettings())


@pytest.mark.slow
def test_the_figures_of_the_demo_are_those_of_its_whole_model(tmp_path) -> None:
    from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT

    settings = EvaluationSettings(schemes=(Scheme.parse("nf4"),), windows=6)
    begun, parts = told(open_model("demo"), settings)
    row = summarize(begun, parts, "done").rows[1]
    raw = np.frombuffer(HELD_BACK_TEXT.read_bytes(), np.uint8).astype(np.int64)
    there = raw[: raw.size // 256 * 256].reshape(-1, 256)
    ids = there[np.linspace(0, len(there) - 1, 6).round().astype(int)]
    model = whole(DEMO_FOLDER)
    before = logits_of(model, ids, 127).double().log_softmax(-1)
    after = logits_of(quantize_whole(model, "nf4"), ids, 127).double().log_softmax(-1)
    divergence = (before.exp() * (before - after)).sum(-1).numpy()
    assert row.kl_mean == pytest.approx(divergence.mean(), rel=1e-4)
    assert row.kl_median == pytest.approx(np.median(divergence), rel=1e-3)
    loss = -after.gather(-1, torch.from_numpy(ids[:, -127:])[..., None]).mean()
    assert row.loss == pytest.approx(float(loss), rel=1e-6)
    same = (before.argmax(-1) == after.argmax(-1)).double().mean()
    assert row.top1_agreement == pytest.approx(float(same))


# The whole way


def told(source: Any, settings: EvaluationSettings, **more: Any) -> tuple[Any, list[Any]]:
    found: list[Any] = []
    evaluate(source, settings, found.append, **more)
    return found[0], found[1:]


def written(tmp_path: Path, words: int = 900) -> str:
    (tmp_path / "text.txt").write_text(running_models.text(words))
    return str(tmp_path / "text.txt")


def test_an_identity_changes_nothing_and_parts_that_are_done_are_left_out(tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path / "m", torch.bfloat16))
    settings = EvaluationSettings(
        schemes=(Scheme.parse("bf16"), Scheme.parse("int3")),
        text=written(tmp_path), window=64, windows=40,
    )  # fmt: skip
    begun, parts = told(source, settings)
    found = summarize(begun, parts, "done")
    assert [row.scheme for row in found.rows] == ["original", "bf16", "int3:group64"]
    same, worse = found.rows[1:]
    assert (same.kl_mean, same.kl_p999, same.kl_stderr, same.top1_agreement) == (0, 0, 0, 1)
    assert same.loss == found.rows[0].loss
    assert worse.kl_mean > 0
    assert found.tokens == 31 * begun.text.windows
    again, rest = told(source, settings, done=[(0, 0), (0, 1)])
    assert again.text == begun.text
    assert [(p.batch, p.candidate) for p in rest] == [(0, 2)]
    assert rest[0].divergence == parts[2].divergence


def test_an_assignment_that_is_given_and_the_second_half_of_a_text(tmp_path) -> None:
    """A scheme given to every matrix is that scheme; what is read of a text is what is read of a
    file of its second half."""
    source = open_model(running_models.llama(tmp_path / "m"))
    names = [info.name for info in source.tensors.values() if is_quantizable(info)]
    scheme = Scheme.parse("int3")
    given = NamedAssignment("mine", {**dict.fromkeys(names, scheme), names[0]: None})
    whole, half = written(tmp_path), tmp_path / "half.txt"
    raw = Path(whole).read_bytes()
    half.write_bytes(raw[len(raw) // 2 :])
    alone = EvaluationSettings(schemes=(scheme,), keep=(names[0],), text=str(half), window=64)
    both = EvaluationSettings(given=(given,), text=whole, second_half=True, window=64)
    assert both.settled().schemes == ()
    (first, one), (second, two) = told(source, alone), told(source, both)
    assert [each.name for each in second.candidates] == ["original", "mine"]
    assert second.text.digest == first.text.digest
    assert [p.divergence for p in two] == [p.divergence for p in one]
    assert [p.nbytes for p in two] == [p.nbytes for p in one]


def test_batches_do_not_change_the_figures(tmp_path, monkeypatch) -> None:
    source = open_model(running_models.llama(tmp_path / "m"))
    settings = EvaluationSettings(
        schemes=(Scheme.parse("int3"),), activations=(Scheme.parse("int8:tensor"),),
        text=written(tmp_path), window=64, windows=5,
    )  # fmt: skip
    rows = []
    for size, batches in ((4096, (5,)), (128, (2, 2, 1))):
        monkeypatch.setattr("qtui_core.evaluation.evaluate.BATCH_TOKENS", size)
        begun, parts = told(source, settings)
        assert begun.batches == batches
        rows.append(summarize(begun, parts, "done").rows)
    for one, other in zip(*rows, strict=True):
        assert one.kl_mean == pytest.approx(other.kl_mean, rel=2e-2)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
    assert rows[0][1].kl_mean == pytest.approx(rows[1][1].kl_mean, rel=1e-4)


def test_an_evaluation_is_cancelled_before_the_next_layer(tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path / "m"))
    asked = iter(range(99))
    job = Job(cancelled=lambda: next(asked) == 3)
    with pytest.raises(Cancelled):
        told(source, EvaluationSettings(text=written(tmp_path)), job=job)
    assert next(asked) == 4


def broken_llama(folder: Path) -> Path:
    running_models.llama(folder)
    with weights_of(folder) as weights:
        weights["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    return folder


@over(
    "make, error, words",
    [
        (running_models.bert, ModelError, "no head that predicts the next token"),
        (broken_llama, ModelError, "itself .which 'model.layers.1.mlp.up_proj.weight' has too"),
        (partial(running_models.llama, vocab_size=300), ModelError, "There is no tokenizer"),
    ],
)
def test_a_model_that_cannot_be_evaluated_is_refused(make, error, words, tmp_path) -> None:
    source = open_model(make(tmp_path / "m"))
    with pytest.raises(error, match=words):
        told(source, EvaluationSettings(text=written(tmp_path)))


def test_a_forward_pass_that_fails_is_a_sentence(tmp_path) -> None:
    source = open_model(running_models.llama(tmp_path / "m"))
    model = streamed.StreamedModel(source, "cpu")
    with pytest.raises(QtuiError, match=r"The forward pass of .* failed"):
        model.logits(tokens() + 1000, 20, original(source))
