"""The weight of each tensor for the predictions of a model, against the evaluation of the model
with that tensor alone quantized, and against gradients by brute force."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import running_models
from every import every, over
from lazy_imports import LazyImport
from shorthands import heard_by

from qtui_core.errors import ModelError, UsageError
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.evaluation.summary import summarize
from qtui_core.inspection.inspect import is_quantizable
from qtui_core.job import IDLE, Cancelled
from qtui_core.loading.text import Text
from qtui_core.models import open_model
from qtui_core.quant import quantize
from qtui_core.schemes.scheme import Scheme

torch = LazyImport("torch")
transformers = LazyImport("transformers")
evaluate = LazyImport("qtui_core.evaluation.evaluate", "evaluate")
predictions = LazyImport("qtui_core.evaluation.sensitivity.predictions")
Batch = LazyImport("qtui_core.evaluation.sensitivity.predictions", "_Batch")
weighed_model = LazyImport("qtui_core.evaluation.sensitivity.predictions", "_weighed_model")

TEXT = Text(running_models.text(1200), "words")
SCHEMES = [Scheme.parse(text) for text in ("int3", "int8")]


def llama(folder: Path, **more: Any) -> Path:
    """One whose predictions are far from even."""
    return running_models.llama(folder, initializer_range=0.3, **more)


def matrices(source: Any) -> list[str]:
    return [name for name, info in source.tensors.items() if is_quantizable(info)]


def evaluated(source: Any, name: str, scheme: Scheme, found: Any, folder: Path) -> float:
    """The divergence that `qtui eval --assignment` gives on the same windows."""
    (folder / "half.txt").write_text(TEXT.content[: len(TEXT.content) // 2])
    (folder / "one.json").write_text(json.dumps({name: str(scheme)}))
    settings = EvaluationSettings(
        assignment=(str(folder / "one.json"),), text=str(folder / "half.txt"), windows=found.windows
    )
    told: list[Any] = []
    evaluate(source, settings, told.append)
    row = summarize(told[0], told[1:], "done").rows[1]
    assert row.kl_mean is not None
    return row.kl_mean


def check_against_evaluation(folder: Path, tmp_path: Path, names: slice, windows: int = 3) -> None:
    source = open_model(folder)
    wanted = matrices(source)
    found = predictions.prediction_errors("kl", source, wanted, SCHEMES, TEXT, windows=windows)
    assert list(found.nats) == wanted
    for name in wanted[names]:
        for scheme, by_window in zip(SCHEMES, found.nats[name], strict=True):
            assert len(by_window) == windows
            expected = evaluated(source, name, scheme, found, tmp_path)
            assert np.mean(by_window) == pytest.approx(expected, rel=2e-3, abs=1e-12), name


@over(("tied", "names"), [(False, slice(None, None, 7)), (True, slice(0, 1))])
def test_the_divergence_of_one_tensor_is_that_of_an_evaluation(tmp_path, tied, names) -> None:
    """A tied head begins at the embedding."""
    check_against_evaluation(llama(tmp_path / "m", tie_word_embeddings=tied), tmp_path, names)


@pytest.mark.slow
def test_the_tensors_of_every_family_are_those_of_an_evaluation(tmp_path) -> None:
    families: dict[str, dict[str, Any]] = {
        "Llama": {},
        "Qwen3": {"tie_word_embeddings": True, "head_dim": 16},
        "Gemma2": {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
        "Bloom": {"n_layer": 2, "n_head": 4},
        "Mamba": {},
        "GPTNeoX": {},
    }

    def one(family: str) -> None:
        torch.manual_seed(3)
        config = getattr(transformers, f"{family}Config")(
            **{
                "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 256, "initializer_range": 0.1, **families[family],
            }
        )  # fmt: skip
        model = transformers.AutoModelForCausalLM.from_config(config)
        folder = running_models.write(model, tmp_path / family)
        check_against_evaluation(folder, tmp_path, slice(None, None, 2), windows=2)

    every(list(families), one)


def test_a_model_that_changes_its_layers_outputs_in_place_runs_whole(tmp_path) -> None:
    source = open_model(llama(tmp_path))
    name = "model.layers.1.mlp.up_proj.weight"

    def found(double: Any) -> Any:
        asked = weighed_model(source, [name], SCHEMES, TEXT, 2)
        asked.model.loaded.model.model.layers[1].register_forward_pre_hook(double)
        batch = Batch(asked, asked.model, asked.windows.ids, IDLE)
        return batch.divergences(lambda: None)[name]

    def in_place(_: Any, args: Any) -> None:
        args[0].mul_(2.0)

    assert found(in_place) == pytest.approx(found(lambda _, args: (args[0] * 2.0,)), rel=1e-4)


def test_what_cannot_be_weighed_is_refused(tmp_path) -> None:
    source = open_model(llama(tmp_path / "m"))
    with pytest.raises(ModelError, match=r"does not use 'gone\.weight' of"):
        predictions.prediction_errors("kl", source, ["gone.weight"], SCHEMES, TEXT)
    short = Text("four" * 6, "four")
    with pytest.raises(UsageError, match="The text has 12 tokens"):
        predictions.prediction_errors("kl", source, matrices(source), SCHEMES, short)
    told: list[float] = []
    job = heard_by(told, cancelled=lambda: len(told) > 4)
    with pytest.raises(Cancelled):
        predictions.prediction_errors("kl", source, matrices(source), SCHEMES, TEXT, job=job)
    assert (told, told[-1] < 1) == (sorted(told), True)


def test_progress_ends_at_one(tmp_path) -> None:
    told: list[float] = []
    source = open_model(llama(tmp_path))
    some = matrices(source)[:3]
    predictions.prediction_errors("kl", source, some, SCHEMES, TEXT, windows=5, job=heard_by(told))
    assert (told, told[-1]) == (sorted(told), 1.0)


def by_brute_force(folder: Path, name: str, scheme: Scheme, ids: Any, scored: int) -> list[float]:
    """Half of the sum of g^2 dw^2 over scored tokens, by window, with the gradients of the whole
    model of transformers for the tokens that the seed draws."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    weight = dict(model.named_parameters())[name]
    generator = torch.Generator().manual_seed(0)
    found = []
    for window in torch.from_numpy(ids):
        model.zero_grad()
        logits = model(input_ids=window[None], use_cache=False).logits[0, -scored - 1 : -1]
        drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
        torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
        change = quantize(weight.detach().numpy(), scheme).dequantize() - weight.detach().numpy()
        squares = weight.grad.double().numpy() ** 2 * change.astype(np.float64) ** 2
        found.append(float(squares.sum() / (2 * scored)))
    return found


def test_estimates_are_sums_of_squared_gradients(tmp_path) -> None:
    for tied in (False, True):
        folder = llama(tmp_path / f"m{tied}", tie_word_embeddings=tied)
        source = open_model(folder)
        wanted = matrices(source)
        found = predictions.prediction_errors("fisher", source, wanted, SCHEMES, TEXT, windows=2)
        assert (found.by, list(found.nats)) == ("fisher", wanted)
        asked = weighed_model(source, wanted, SCHEMES, TEXT, 2)
        for name in wanted[:: 1 if tied else 3]:
            expected = by_brute_force(folder, name, SCHEMES[0], asked.windows.ids, found.scored)
            assert found.nats[name][0] == pytest.approx(expected, rel=1e-3), (name, tied)


def test_a_small_change_does_what_was_estimated(tmp_path) -> None:
    """The second order of the divergence: of 8-bit rounding it is nearly all there is. What is left
    is the chance of the drawn tokens and of the rounding errors."""
    source = open_model(running_models.llama(tmp_path, initializer_range=0.1, hidden_size=64))
    wanted = matrices(source)
    schemes = [Scheme.parse("int8"), Scheme.parse("int6:row")]
    estimated, measured = (
        predictions.prediction_errors(by, source, wanted, schemes, TEXT, windows=16).nats
        for by in ("fisher", "kl")
    )
    for index, scheme in enumerate(schemes):
        means = [[np.mean(found[n][index]) for n in wanted] for found in (estimated, measured)]
        ratios = np.divide(*means)
        assert ratios.min() > 0.5, scheme
        assert ratios.max() < 2.0, scheme
        assert np.median(ratios) == pytest.approx(1.0, abs=0.15), scheme


@pytest.mark.slow
def test_gradients_take_the_weights_of_one_layer_at_a_time(tmp_path) -> None:
    """Whatever has the shape of a layer's weight is of one layer, in both directions."""
    source = open_model(llama(tmp_path, num_hidden_layers=4, intermediate_size=51))
    asked = [n for n in matrices(source) if "down_proj" in n]
    seen = []

    def look(module: Any, *_: Any) -> None:
        if type(module).__name__ == "LlamaMLP":
            gc.collect()
            held = [t for t in gc.get_objects() if isinstance(t, torch.Tensor)]
            held = [t for t in held if t.shape == (32, 51)]
            seen.append(sum(t.untyped_storage().nbytes() > 8 for t in held))

    gc.freeze()  # what other tests have made is not walked through
    hook = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        predictions.prediction_errors("fisher", source, asked, SCHEMES, TEXT, windows=1)
    finally:
        hook.remove()
        gc.unfreeze()
    # When a layer is loaded, that of the one before may not be let go yet.
    assert len(seen) >= 8
    assert set(seen) <= {1, 2}
