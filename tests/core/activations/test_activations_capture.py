"""Captured activations, compared with hooks on the same model opened by transformers."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import running_models
from lazy_imports import LazyImport, lazy_names

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.job import Cancelled, Job
from qtui_core.loading.text import Text, builtin_text, read_text
from qtui_core.loading.tokens import Tokenizer, Windows, positions_of, split_windows, token_budget
from qtui_core.models import open_model
from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT

torch = LazyImport("torch")
transformers = LazyImport("transformers")
load_file, save_file = lazy_names("safetensors.torch", "load_file", "save_file")
capture = LazyImport("qtui_core.activations.capture", "capture")
load_model = LazyImport("qtui_core.loading.model", "load_model")


NAME = "model.layers.0.mlp.up_proj"


def opened(path: Path | str):
    return load_model(open_model(str(path)))


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    """A small Llama in the folder `m`."""
    return opened(running_models.llama(tmp_path / "m"))


def windows(*lengths: int, seed: int = 0, vocabulary: int = 256) -> Windows:
    rng = np.random.default_rng(seed)
    return Windows(tuple(rng.integers(0, vocabulary, n).astype(np.int64) for n in lengths))


def by_hand(model: Any, given: Windows, module: str) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, outputs) of a module over all windows in order, float32."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    handle = model.get_submodule(module).register_forward_hook(
        lambda m, args, out: seen.append((args[0].float(), out.float()))
    )
    with torch.no_grad():
        for ids in given.ids:
            model(torch.from_numpy(ids)[None])
    handle.remove()
    inputs, outputs = zip(*seen, strict=True)
    return tuple(
        torch.cat([x.reshape(-1, x.shape[-1]) for x in side]).numpy() for side in (inputs, outputs)
    )  # type: ignore[return-value]


def check(loaded: Any, reference: Any, module: str, given: Windows) -> Any:
    torch.set_num_threads(1)
    record = capture(loaded, given, [module])[module]
    inputs, outputs = by_hand(reference, given, module)
    assert record.input.whole
    assert record.output.whole
    assert np.array_equal(record.input.rows, inputs)
    assert np.array_equal(record.output.rows, outputs)
    observed = record.output.observed
    assert (observed.min, observed.max) == (outputs.min(), outputs.max())
    assert np.array_equal(observed.channel_absmax, np.abs(outputs).max(axis=0))
    np.testing.assert_allclose(
        record.input.observed.second_moment, (inputs.astype(float) ** 2).mean(axis=0)
    )
    return record


@pytest.mark.parametrize("side", ["mlp.down_proj", "self_attn.q_proj"])
def test_the_demo_s_activations_are_transformers_own_to_the_bit(side: str) -> None:
    loaded, module = opened("demo"), f"model.layers.3.{side}"
    tokens = np.frombuffer(HELD_BACK_TEXT.read_bytes()[:256], np.uint8).astype(np.int64)
    reference = transformers.LlamaForCausalLM.from_pretrained(DEMO_FOLDER, dtype="auto").eval()
    assert reference.dtype == torch.bfloat16
    assert loaded.dtype == "bfloat16"
    assert loaded.module_of(f"{module}.weight") == module
    assert check(loaded, reference, module, Windows((tokens,))).kind == "Linear"


def test_a_llama_in_float32_and_its_head(loaded: Any, tmp_path: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    for module in ("model.layers.1.mlp.gate_proj", "lm_head"):
        check(loaded, reference, module, windows(64))


def test_a_gpt2_whose_weights_are_transposed(tmp_path: Path) -> None:
    folder = running_models.gpt2(tmp_path / "m")
    loaded = opened(folder)
    (name,) = [name for name in loaded.source.tensors if name.endswith("h.1.mlp.c_fc.weight")]
    module = loaded.module_of(name)
    assert module == "transformer.h.1.mlp.c_fc"
    reference = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    assert check(loaded, reference, module, windows(32)).kind == "Conv1D"
    assert loaded.source.tensor(name).shape == (32, 128)


@pytest.mark.parametrize("masked", [False, True])
def test_an_encoder_with_its_own_tokenizer(tmp_path: Path, masked: bool) -> None:
    folder = running_models.bert(tmp_path / "m", masked=masked)
    loaded = opened(folder)
    reference = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer(loaded)
    ids = tokenizer.encode(running_models.text(200))
    first, second = split_windows(ids, tokenizer, positions_of(loaded.model))
    assert second is not None
    assert [part.size for part in first.ids] == [40, 40, 26]  # 38 + 38 + 24 and [CLS], [SEP]
    assert all(part[0] == 2 and part[-1] == 3 for part in (*first.ids, *second.ids))
    tensor = "encoder.layer.1.attention.self.query.weight"
    stored = f"bert.{tensor}" if masked else tensor
    module = loaded.module_of(stored)
    assert module == tensor.removesuffix(".weight")
    check(loaded, reference, module, Windows(first.ids[:1]))


def test_one_safetensors_file_with_its_config(tmp_path: Path) -> None:
    folder = running_models.llama(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    save_file({"x": torch.ones(2)}, folder / "model.safetensors")  # not what is asked for
    loaded = opened(folder / "other.safetensors")
    stored = load_file(folder / "other.safetensors")
    weight = loaded.model.get_submodule("model.layers.0.mlp.up_proj").weight
    assert torch.equal(weight, stored["model.layers.0.mlp.up_proj.weight"])


def test_running_never_writes_to_the_files(loaded: Any, tmp_path: Path) -> None:
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.zero_()  # a model may change its weights; the file stays
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before


def test_windows_of_several_lengths_are_not_padded(loaded: Any, tmp_path: Path) -> None:
    given = windows(40, 40, 40, 17)
    record = capture(loaded, given, [NAME])[NAME]
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    inputs, _ = by_hand(reference, given, NAME)
    assert record.input.observed.tokens == 137
    np.testing.assert_allclose(record.input.rows, inputs, rtol=1e-4, atol=1e-5)


def test_only_chosen_modules_are_kept_and_hooks_are_removed(loaded: Any) -> None:
    capture(loaded, windows(64), [NAME])  # whatever transformers keeps for itself

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    before = alive()
    record = capture(loaded, windows(64, 64), [NAME])[NAME]
    assert alive() == before
    assert not any(module._forward_hooks for module in loaded.model.modules())
    assert record.input.rows.nbytes == 128 * 32 * 4


def test_a_bounded_sample_with_observers_over_all_tokens(
    loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = windows(100, 100)
    whole = capture(loaded, given, [NAME])[NAME]
    monkeypatch.setattr("qtui_core.activations.capture.KEEP_BYTES", 50 * 48 * 4)
    part = capture(loaded, given, [NAME])[NAME]
    assert part.output.rows.shape == (50, 48)
    assert np.array_equal(part.output.rows, whole.output.rows[::4])
    assert not part.output.whole
    assert part.output.observed.tokens == 200
    for seen in ("channel_absmax", "second_moment"):
        ours, theirs = (getattr(x.output.observed, seen) for x in (part, whole))
        assert np.array_equal(ours, theirs)


# Failures


def test_a_failing_forward_pass_is_reported_with_its_module(loaded: Any) -> None:
    act = loaded.model.model.layers[1].mlp.act_fn
    kept = act.forward
    act.forward = lambda x: (_ for _ in ()).throw(ZeroDivisionError("the sky\nfell"))
    with pytest.raises(QtuiError) as caught:
        capture(loaded, windows(64), [NAME])
    message = str(caught.value)
    assert "model.layers.1.mlp" in message
    assert "ZeroDivisionError: the sky)" in message
    assert not any(module._forward_hooks for module in loaded.model.modules())
    act.forward = kept
    assert capture(loaded, windows(64), [NAME])[NAME].input.whole


def test_cancelling_between_batches_leaves_nothing(loaded: Any) -> None:
    heard: list[tuple[float, float]] = []
    job = Job(lambda done, total, _: heard.append((done, total)), lambda: len(heard) == 2)
    with pytest.raises(Cancelled):
        capture(loaded, windows(*range(60, 70)), ["lm_head"], job=job)
    assert heard == [(60, 645), (121, 645)]
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_a_module_that_is_never_reached(loaded: Any) -> None:
    loaded.model.model.spare = torch.nn.Linear(4, 4)
    with pytest.raises(QtuiError, match=r"No token reached model\.spare"):
        capture(loaded, windows(64), ["model.spare"])


def test_weights_that_are_no_linear_module_are_refused(loaded: Any) -> None:
    with pytest.raises(UsageError, match="belongs to a Embedding"):
        loaded.module_of("model.embed_tokens.weight")
    with pytest.raises(UsageError, match="belongs to a LlamaRMSNorm"):
        loaded.module_of("model.norm.weight")
    with pytest.raises(ModelError, match="no tensor"):
        loaded.module_of("nothing.weight")


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config.pop(key, None) if value is None else config.update({key: value})
    path.write_text(json.dumps(config))


def test_a_model_brings_no_code(tmp_path):
    """A class of transformers with `auto_map` beside it is built as transformers has it."""
    folder = running_models.llama(tmp_path / "model")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    kinds = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    edit(folder, auto_map={kind: f"own.{kind}" for kind in kinds})
    model = opened(folder).model
    assert type(model) is transformers.LlamaForCausalLM
    assert not hasattr(model.config, "auto_map")
    assert not (tmp_path / "ran").exists()


def test_a_configuration_keeps_no_key_that_chooses_code():
    from qtui_core.loading.model import _CODE_KEYS, without_code

    for key in _CODE_KEYS:
        config = {key: "x", "layers": [{key: "x", "size": 1}], "text_config": {key: {"a": "b"}}}
        assert without_code(config) == {"layers": [{"size": 1}], "text_config": {}}, key


def test_models_that_cannot_run_are_refused_in_words(tmp_path: Path) -> None:
    good = running_models.llama(tmp_path / "good")
    gptq = {"quant_method": "gptq", "bits": 4}
    for number, (changes, words) in enumerate([
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "nosuch"}, "knows no model of type 'nosuch'"),
        ({"model_type": "nosuch", "auto_map": {"AutoModel": "x.Y"}}, "which is never run"),
        ({"architectures": ["LlamaForCausalSomething"]}, "is a LlamaForCausalSomething"),
        ({"hidden_size": 64}, r"is \(256, 32\) in the checkpoint and \(256, 64\)"),
        ({"num_hidden_layers": 3}, "lacks 9 of the tensors"),
        # Accepting these sizes would take terabytes or minutes.
        ({"vocab_size": 10**10}, "describes 640,000,015,520 parameters"),
        ({"num_hidden_layers": 10**5}, "says 100,000 layers"),
        ({"hidden_size": "x"}, "field 'hidden_size': TypeError"),
        ({"hidden_act": "nosuch"}, "it knows no 'nosuch'"),
        ({"quantization_config": gptq}, "open the model it was made from"),
    ]):  # fmt: skip
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        edit(folder, **changes)
        with pytest.raises(ModelError, match=words):
            opened(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(good / "model.safetensors", alone)
    with pytest.raises(ModelError, match=r"no config\.json"):
        opened(alone)
    with pytest.raises(ModelError, match="no weights to read"):
        opened(good / "config.json")
    t5 = tmp_path / "t5"
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    transformers.T5Model(config).save_pretrained(t5)
    with pytest.raises(ModelError, match="is a T5Model; activations are captured from text"):
        opened(t5)


# Text


def test_calibration_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for raw, words in [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"ELF\x00\x01", r"is binary \(a zero byte at 3\)"),
        ("grün".encode("latin-1"), r"no UTF-8 text \(byte 2\)"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(UsageError, match=words):
            read_text(str(path))
    for name, words in [
        (tmp_path / "no", "is no file"),
        (tmp_path, "is a folder"),
        ("", "names no"),
    ]:
        with pytest.raises(UsageError, match=words):
            read_text(str(name))


def test_a_long_file_is_read_in_part_and_no_character_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtui_core.loading.text.MAX_BYTES", 5)
    path = tmp_path / "x.txt"
    path.write_text("abcdü and more", encoding="utf-8")
    assert read_text(str(path)) == Text("abcd", "x.txt", partial=True)
    path.write_text("abcd", encoding="utf-8")
    assert read_text(str(path)) == Text("abcd", "x.txt")
    monkeypatch.undo()
    assert "\0" in builtin_text().content  # which separates documents
    assert read_text(str(HELD_BACK_TEXT)).content == builtin_text().content


def test_bytes_are_the_tokens_of_the_demo() -> None:
    loaded = opened("demo")
    tokenizer = Tokenizer(loaded)
    text = builtin_text().content
    ids = tokenizer.encode(text)
    assert np.array_equal(ids, np.frombuffer(HELD_BACK_TEXT.read_bytes(), np.uint8))
    first, second = split_windows(ids, tokenizer, positions_of(loaded.model))
    assert second is not None
    assert first.tokens == second.tokens == 2048
    middle = ids.size // 2
    raw = ids.tobytes()
    for part, low, high in [(first, 0, middle), (second, middle, ids.size)]:
        for window in part.ids:  # each is a part of one half only
            assert raw[low * 8 : high * 8].find(window.tobytes()) >= 0


def test_a_large_model_reads_fewer_tokens() -> None:
    assert token_budget(4_558_080) == 2048
    assert token_budget(10**9) == 500
    assert token_budget(70 * 10**9) == 256
    tokenizer = Tokenizer(opened("demo"))
    first, second = split_windows(tokenizer.encode("ab" * 5000), tokenizer, None, budget=600)
    assert second is not None
    assert (first.tokens, second.tokens) == (512, 512)  # whole windows


def test_short_texts() -> None:
    tokenizer = Tokenizer(opened("demo"))
    with pytest.raises(UsageError, match="The text has 1 token; calibration needs at least 16"):
        split_windows(tokenizer.encode("a"), tokenizer, None)
    whole, nothing = split_windows(tokenizer.encode("a" * 31), tokenizer, None)
    assert (whole.tokens, nothing) == (31, None)
    first, second = split_windows(tokenizer.encode("a" * 33), tokenizer, None)
    assert second is not None
    assert (first.tokens, second.tokens) == (16, 17)


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    loaded = opened(running_models.llama(tmp_path / "m", vocab_size=300))
    with pytest.raises(ModelError, match="There is no tokenizer"):
        Tokenizer(loaded)
    running_models.write_tokenizer(tmp_path / "m")
    assert Tokenizer(loaded).encode("the cat").tolist() == [5, 6]
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer(loaded)
    other = opened(running_models.llama(tmp_path / "other", vocab_size=8))
    running_models.write_tokenizer(tmp_path / "other")
    with pytest.raises(ModelError, match="do not belong together"):
        Tokenizer(other).encode("away and then")


def test_a_tokenizer_that_does_not_end_or_panics_is_a_sentence(
    loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_models.write_tokenizer(tmp_path / "m")
    running_models.split_tokenizer(tmp_path / "m", running_models.PANICKING)
    assert Tokenizer(loaded).encode("the cat").tolist() == [5, 6]
    with pytest.raises(ModelError, match=r"The tokenizer of the model failed: .*retry-limit"):
        Tokenizer(loaded).encode("a" * 3000 + " the cat")
    running_models.write_tokenizer(tmp_path / "m")
    running_models.split_tokenizer(tmp_path / "m", running_models.ENDLESS)
    tokenizer = Tokenizer(loaded)
    monkeypatch.setattr("qtui_core.loading.tokens._SECONDS", 0.1)
    with pytest.raises(ModelError, match=r"failed: it took more than 0 seconds"):
        tokenizer.encode("a" * 1200 + " the cat")


def test_a_tokenizer_file_is_read_though_its_class_is_the_models_own(
    loaded: Any, tmp_path: Path
) -> None:
    running_models.write_tokenizer(tmp_path / "m")
    expected = Tokenizer(loaded)
    running_models.own_tokenizer_class(tmp_path / "m")
    found = Tokenizer(loaded)
    assert found.encode("the cat sat").tolist() == expected.encode("the cat sat").tolist()
    assert (found.prefix.tolist(), found.special) == (expected.prefix.tolist(), expected.special)
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "m" / "vocab.json")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer(loaded)
