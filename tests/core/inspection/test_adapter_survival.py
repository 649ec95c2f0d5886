"""What survives of an adapter's update, against sums written out and known answers."""

from dataclasses import replace

import numpy as np
import pytest
from adapter_models import lora, write_adapter
from every import over
from packed_models import save_model
from told_truly import faults_of

from qtui_core.errors import ModelError, UsageError
from qtui_core.inspection.adapters.merging import merge_adapter
from qtui_core.inspection.adapters.reading import read_adapter
from qtui_core.inspection.adapters.survival import (
    DivergenceRow,
    MergedDivergence,
    UpdateSurvival,
    conclude_adapter,
    survey,
)
from qtui_core.models import open_model
from qtui_core.models.opening import open_adapter
from qtui_core.quant import Scheme, quantize

Q, NAME = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj.weight"
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def weight(seed=0, shape=(64, 128)):
    return (0.02 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def surveyed(folder, weights, tensors, schemes="nf4", trained_on=None, config=None, full=True):
    base = save_model(folder / "base", weights, **CONFIG)
    adapter = write_adapter(folder / "adapter", tensors, config)
    with open_model(str(base)) as source:
        merge = merge_adapter(source, read_adapter(open_adapter(str(adapter))))
        parsed = [Scheme.parse(text) for text in schemes.split(",")]
        on = None if trained_on is None else Scheme.parse(trained_on)
        return survey(merge, parsed, on, full=full)


def rounded(values, scheme):
    return quantize(values, Scheme.parse(scheme)).dequantize().astype(np.float64)


def test_figures_are_their_definitions(tmp_path):
    """In float64, written out, for both orders of merging."""
    base, parts = weight(), lora(Q, 64, 128)
    found = surveyed(tmp_path, {NAME: base}, parts, "nf4,int4", "nf4:dq", {"lora_alpha": 2})
    delta = 0.5 * (parts[f"{Q}.lora_B.weight"] @ parts[f"{Q}.lora_A.weight"])
    trained = rounded(base, "nf4:dq").astype(np.float32)
    target = (trained + delta).astype(np.float64)
    size = np.sum((target - trained) ** 2)
    names = ["nf4:block64", "int4:group64"]
    assert [way.scheme for way in found.ways] == names * 2
    for way in found.ways:
        start = trained if way.onto else base
        merged = start + delta
        update = merged.astype(np.float64) - start
        moved = rounded(merged, way.scheme) - rounded(start, way.scheme)
        error = np.sum((rounded(merged, way.scheme) - target) ** 2)
        beside = rounded(base, way.scheme).astype(np.float32) + delta - target
        assert way.kept == pytest.approx(np.sum(moved * update) / np.sum(update**2), rel=1e-9)
        assert way.error == pytest.approx(np.sqrt(error / size), rel=1e-9)
        assert way.apart == pytest.approx(np.sqrt(np.sum(beside**2) / size), rel=1e-6)
    sizes = [np.linalg.norm(each.astype(np.float64)) for each in (delta, base)]
    assert found.relative == pytest.approx(sizes[0] / sizes[1], rel=1e-4)


def test_a_small_update_of_a_base_on_the_grid_is_rounded_away(tmp_path):
    """Every value of the dequantized base is a level, so that less than half a step brings nothing
    to another; the stored base lies anywhere between levels."""
    parts = lora(Q, 64, 128)
    parts[f"{Q}.lora_B.weight"] *= np.float32(0.3)
    found = surveyed(tmp_path, {NAME: weight().astype(np.float16)}, parts, "int4", "int4")
    stored, onto = found.ways
    assert onto.kept == pytest.approx(0, abs=0.02)
    assert onto.error == pytest.approx(1, abs=0.1)
    assert stored.kept == pytest.approx(1, abs=0.3)
    assert stored.apart == onto.apart == 0
    assert onto.error < stored.error, "which is no reason to recommend it"
    assert found.conclusion.startswith("Merged and quantized to int4:group64, ")
    assert "it gives what was trained" in found.conclusion


def test_a_fine_scheme_keeps_all_and_a_scheme_of_zeros_nothing(tmp_path):
    fine = surveyed(tmp_path / "a", {NAME: weight()}, lora(Q, 64, 128), "tf32").ways[0]
    assert fine.kept == pytest.approx(1, abs=1e-3)
    assert fine.error < 0.03
    # Values far below one step of a tensor with a huge element all become zero.
    base = weight()
    base[0, 0] = 1e6
    coarse = surveyed(tmp_path / "b", {NAME: base}, lora(Q, 64, 128), "int4:tensor")
    assert coarse.ways[0].kept == pytest.approx(0, abs=0.01)
    assert "most of it is rounded away" in coarse.conclusion


def test_worst_weights_come_first_and_add_up(tmp_path):
    parts, weights = {}, {}
    for layer, scale in enumerate((1.0, 0.1, 0.5)):
        module = f"model.layers.{layer}.mlp.up_proj"
        weights[f"{module}.weight"] = weight(layer)
        parts |= lora(module, 64, 128, seed=layer)
        parts[f"{module}.lora_B.weight"] *= np.float32(scale)
    weights["lm_head.weight"] = weight(9)
    parts |= lora("lm_head", 64, 128, seed=9)
    found = surveyed(tmp_path, weights, parts)
    *matrices, head = found.weights
    assert (head.name, head.ways) == ("lm_head.weight", ()), "heads stay as merged"
    errors = [w.ways[0].error for w in matrices]
    assert errors == sorted(errors, reverse=True)
    assert matrices[0].name == "model.layers.1.mlp.up_proj.weight"
    total = sum(w.ways[0].squared_error for w in matrices)
    assert total == pytest.approx(found.ways[0].squared_error)


def test_a_sample_of_rows_estimates_the_whole(tmp_path):
    tall = weight(1, (20_000, 64))
    parts = lora(Q, 20_000, 64)
    whole = surveyed(tmp_path / "a", {NAME: tall}, parts)
    part = surveyed(tmp_path / "b", {NAME: tall}, parts, full=False)
    assert part.weights[0].read < whole.weights[0].read == tall.size
    assert part.ways[0].error == pytest.approx(whole.ways[0].error, rel=0.02)
    assert part.ways[0].update == pytest.approx(whole.ways[0].update, rel=0.02)
    assert "A sample" in part.sample


def test_what_a_whole_model_shares_or_breaks_is_refused(tmp_path):
    with pytest.raises(UsageError, match="int8:tensor"):
        surveyed(tmp_path / "a", {NAME: weight()}, lora(Q, 64, 128), "int8:model")
    broken = weight()
    broken[3, 4] = np.inf
    with pytest.raises(ModelError, match="NaN or infinite"):
        surveyed(tmp_path / "b", {NAME: broken}, lora(Q, 64, 128))


STILL = {name: 0 * half for name, half in lora(Q, 64, 128).items() if "lora_B" in name}
NORM = {"model.norm.weight": np.ones(128, np.float32)}
STATES = {
    "changes nothing": ({NAME: weight()}, lora(Q, 64, 128) | STILL),
    "changes 1 weight, and none that is quantized": (
        NORM, {"model.norm.weight": np.full(128, 2, "f4")}),
    "nothing to merge": (NORM, {"score.weight": np.ones((2, 4), "f4")}),
    "give --text FILE": ({NAME: weight()}, lora(Q, 64, 128)),
}  # fmt: skip


@over(("words", "given"), STATES.items())
def test_the_sentence_of_every_state(tmp_path, words, given):
    said = surveyed(tmp_path, *given).conclusion
    assert words in said
    assert not faults_of(said)


def test_the_sentence_recommends_what_loses_less(tmp_path):
    report = surveyed(tmp_path, {NAME: weight()}, lora(Q, 64, 128), "nf4,int4")
    nf4 = "nf4:block64"

    def weights(*along, error=1.0, apart=1.0):
        ways = (
            UpdateSurvival(way.scheme, "", 1.0, 1.0, part, error, apart)
            for way, part in zip(report.ways, along, strict=True)
        )
        return conclude_adapter(replace(report, ways=tuple(ways)))

    def text(merged, apart, decided=True):
        over = None if merged is None or apart is None else merged - apart
        rows = (
            DivergenceRow(nf4, "merged", merged, 0.001, 4.5, 100, over, decided),
            DivergenceRow("int4:group64", "merged", 0.01, 0.001, 8.5, 200),
            DivergenceRow(nf4, "apart", apart, 0.001, 4.6, 110),
        )
        divergence = MergedDivergence(1.0, rows, "A text.")
        return conclude_adapter(replace(report, divergence=divergence))

    for words, said in {
        ", all of the update is left": weights(1.04, 0.2),
        "none of the update is left in the weights, under": weights(-0.01, -0.2),
        "so that most of it is rounded away": weights(0.3, 0.2),
        "it gives what was trained": weights(1.0, 1.0, error=0.0, apart=0.0),
        ": keep the adapter apart.": text(0.4, 0.1),
        ": merge with nf4:block64.": text(0.1, 0.4),
        "cannot tell the two apart: merge it": text(0.101, 0.1, False),
        "so take more bits": text(2.0, 3.0),
    }.items():
        assert words in said
        assert not faults_of(said)
    assert text(0.1, None).endswith(": merge with nf4:block64.")
