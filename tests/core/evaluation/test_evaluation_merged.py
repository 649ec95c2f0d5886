"""The models of an adapter: their logits against peft's, merged and not, and what is made of the
scores."""

from base64 import b64encode
from contextlib import ExitStack

import numpy as np
import pytest
import running_models
from adapter_models import dyadic, lora, write_adapter
from every import every
from lazy_imports import LazyImport
from packed_models import save_model

from qtui_core.evaluation.changes import StoredWeight
from qtui_core.evaluation.merged import adapted, merged_divergence
from qtui_core.evaluation.results import Candidate, EvaluatedText, EvaluationBegun, PartScored
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.models import open_model
from qtui_core.quant import quantize
from qtui_core.quant.elements import ArrayRows
from qtui_core.schemes.scheme import Scheme

torch = LazyImport("torch")
transformers = LazyImport("transformers")
peft = LazyImport("peft")
streamed = LazyImport("qtui_core.evaluation.streamed")

INT4, NF4 = Scheme.parse("int4:group32"), Scheme.parse("nf4:dq")


def quantized(model, scheme):
    """Every matrix of the layers as a scheme keeps it, in the dtype of the model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and (".layers." in name or ".h." in name):
                found = quantize(parameter.float().numpy(), scheme).dequantize()
                parameter.copy_(torch.from_numpy(found))
    return model


def logits(model, ids):
    with torch.inference_mode():
        return model.float().eval()(input_ids=torch.from_numpy(ids), use_cache=False).logits


@pytest.mark.slow
def test_each_model_is_the_one_that_peft_makes(tmp_path):
    """The trained model runs in peft with the adapter beside the base; the merged one is
    merge_and_unload in bf16, then quantized."""

    def check(name, case):
        make, targets, more = case
        base, adapter = tmp_path / name / "base", tmp_path / name / "adapter"
        base.mkdir(parents=True)
        make(base)
        kind = transformers.AutoModelForCausalLM

        def load():
            return kind.from_pretrained(base, dtype=torch.bfloat16)

        load().save_pretrained(base)
        model = peft.get_peft_model(load(), peft.LoraConfig(target_modules=targets, **more))
        rng = np.random.default_rng(4)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.from_numpy(dyadic(rng, *parameter.shape, step=2**-6)))
        model.save_pretrained(adapter)

        def beside(whole):
            return peft.PeftModel.from_pretrained(whole, adapter)

        expected = {
            "trained": lambda: beside(quantized(load(), NF4)),
            "base": lambda: quantized(load(), NF4),
            f"merged {INT4}": lambda: quantized(beside(load()).merge_and_unload(), INT4),
            f"apart {INT4}": lambda: beside(quantized(load(), INT4)),
            f"apart {NF4}": lambda: beside(quantized(load(), NF4)),
            f"merged {INT4} onto {NF4}": lambda: quantized(
                beside(quantized(load(), NF4).float()).merge_and_unload(), INT4
            ).bfloat16(),
        }
        ids = rng.integers(0, 256, (2, 24)).astype(np.int64)
        settings = EvaluationSettings((INT4, NF4), adapter=str(adapter), trained_on=NF4)
        with open_model(base) as source, ExitStack() as stack:
            running = streamed.StreamedModel(source, "cpu")
            ways = {way.name: way for way in adapted(source, settings, stack)}
            assert len(ways) == 8
            for key, make_it in expected.items():
                found = running.logits(ids, 22, streamed.ForwardPass(ways[key]))
                wanted = logits(make_it(), ids)[:, 1:-1]
                scale = float(wanted.abs().max())
                assert float((found - wanted).abs().max()) < 1e-5 * scale, key

    linear = ["q_proj", "down_proj"]
    cases = {
        "llama": (running_models.llama, linear, {"r": 4, "lora_alpha": 2}),
        "norms": (running_models.llama, linear, {"r": 4, "modules_to_save": ["norm"]}),
        "gpt2": (running_models.gpt2, ["c_attn", "c_proj"], {"r": 4, "fan_in_fan_out": True}),
    }
    every(cases.items(), check)


def test_an_adapter_that_changes_nothing_makes_merged_and_apart_one_model(tmp_path):
    """Both are rounded to the stored dtype after they are dequantized, so that neither is nearer to
    the trained model because of that."""
    name = "model.layers.0.self_attn.q_proj"
    values = np.random.default_rng(0).normal(0, 0.02, (32, 64)).astype(np.float16)
    base = save_model(tmp_path / "base", {f"{name}.weight": values}, model_type="llama")
    halves = {key: 0 * half for key, half in lora(name, 32, 64).items()}
    adapter = write_adapter(tmp_path / "a", halves)
    settings = EvaluationSettings((INT4,), adapter=str(adapter))
    with open_model(base) as source, ExitStack() as stack:
        ways = adapted(source, settings, stack)
        info = source.tensor(f"{name}.weight")
        trained, _, merged, apart = (
            way.values(StoredWeight(info, ArrayRows(values.astype(np.float32)))) for way in ways
        )
    assert (merged == apart).all()
    assert (merged != trained).mean() > 0.5
    assert (merged == merged.astype(np.float16)).all()


def test_bytes_count_the_adapter_where_it_is_kept_apart(tmp_path):
    weights = {"model.layers.0.self_attn.q_proj.weight": np.ones((32, 32), np.float32)}
    base = save_model(tmp_path / "base", weights, model_type="llama")
    adapter = write_adapter(tmp_path / "a", lora("model.layers.0.self_attn.q_proj", 32, 32))
    settings = EvaluationSettings((INT4,), adapter=str(adapter))
    with open_model(base) as source, ExitStack() as stack:
        trained, alone, merged, apart = adapted(source, settings, stack)
        assert trained.nbytes() == source.nbytes + 4 * 4 * (32 + 32)
        assert alone.nbytes() == source.nbytes
        assert apart.nbytes() - merged.nbytes() == 4 * 4 * (32 + 32)


def test_differences_are_paired_with_the_same_scheme_apart():
    """Four windows of one token: divergences of the merged model are higher in each by 1."""
    names = ("trained", "base", "merged int4", "merged int4 onto nf4", "apart int4", "apart nf4")
    divergences = ([0] * 4, [9] * 4, [2, 3, 4, 5.1], [1, 9, 1, 9], [1, 2, 3, 4], [0, 1, 2, 3])
    text = EvaluatedText("a text", "a byte a token", 900, "d", 8, 1, 4)
    begun = EvaluationBegun(
        "m", "", 1000, 2000, EvaluationSettings(), text, tuple(map(Candidate, names)), (4,), "CPU"
    )

    def encoded(values, dtype="<f4"):
        return b64encode(np.array(values, dtype).tobytes()).decode()

    parts = [
        PartScored(0, n, 10, encoded([1] * 4), encoded(d) if n else "", encoded([1] * 4, "u1"), 1.0)
        for n, d in enumerate(divergences)
    ]
    found = merged_divergence(begun, parts)
    assert found.base == 9
    rows = {(row.kind, row.name): row for row in found.rows}
    assert len(rows) == 4
    assert rows["merged", "int4"].over_apart == pytest.approx(1.025)
    assert rows["merged", "int4"].decided
    assert rows["merged", "int4 onto nf4"].over_apart == pytest.approx(2.5)
    assert not rows["merged", "int4 onto nf4"].decided
    assert rows["apart", "int4"].over_apart is None
    assert "4 tokens of a text in 4 windows of 8" in found.text
