"""The scheme for each tensor, compared with brute force over all assignments, with errors computed
by other libraries."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui_core.activations.records import LayerInputs
from qtui_core.answers.tensors import PredictionErrors
from qtui_core.codec import printed
from qtui_core.errors import UsageError
from qtui_core.inspection import sample
from qtui_core.inspection.inspect import inspect_model
from qtui_core.inspection.layer_errors import layer_errors
from qtui_core.inspection.sensitivity.bit_allocation import assign_schemes, default_budget
from qtui_core.inspection.sensitivity.budget import parse_budget
from qtui_core.inspection.sensitivity.weighing import (
    refuse_shared_scales,
    weigh_by_outputs,
    weigh_by_predictions,
    weigh_by_weights,
)
from qtui_core.models import open_model
from qtui_core.quant import Scheme, quantize

SCHEMES = [Scheme.parse(text) for text in ("int3", "nf4:dq", "int8")]


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {
        "a.weight": rng.standard_normal((64, 128)),
        "b.weight": rng.standard_normal((128, 64)) * 4,
        "c.weight": rng.standard_t(2.5, (96, 128)),
        "d.weight": rng.standard_normal((32, 64)) * 0.1,
        "norm.weight": np.ones(128),
        "a.bias": np.linspace(-9, 9, 64),
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


@pytest.fixture(scope="module")
def model(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("sensitivity") / "model.safetensors"
    save_file(weights, path)
    with open_model(str(path)) as source:
        yield source


def matrices(weights):
    return {name: x for name, x in weights.items() if x.ndim == 2}


def kept_bytes(weights):
    return sum(x.nbytes for x in weights.values() if x.ndim == 1)


def correlated(count, seed=8):
    """Inputs of a layer as in real models: a few directions have most of the energy."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((300, 3)) @ rng.standard_normal((3, count)) * 3 + 1
    return (rows + rng.standard_normal((300, count)) * 0.3).astype(np.float32)


def product_error(weights, name, y):
    """The relative error of a layer's outputs, bias included, in float64."""
    x = weights[name].astype(np.float64)
    rows = correlated(x.shape[1]).astype(np.float64)
    bias = weights.get(name.replace("weight", "bias"), np.zeros(1))
    return ((rows @ (y - x).T) ** 2).sum() / ((rows @ x.T + bias) ** 2).sum()


def best_by_brute_force(weights, budget, error_of):
    """The least total of `error_of(name, x, y)` over every assignment that fits."""
    kept = kept_bytes(weights)
    options = []
    for name, x in matrices(weights).items():
        rows = [(x.nbytes, 0.0)]
        for scheme in SCHEMES:
            q = quantize(x, scheme)
            rows.append((q.nbytes, error_of(name, x.astype(np.float64), q.dequantize())))
        options.append(rows)
    fits = (
        sum(error for _, error in combination)
        for combination in itertools.product(*options)
        if sum(nbytes for nbytes, _ in combination) + kept <= budget
    )
    return min(fits, default=None)


@pytest.mark.parametrize("bits", [3.7, 4.0, 4.5, 5.5, 8.0, 12.0, 20.0])
def test_by_weights_equals_brute_force(model, weights, bits):
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_weights(inspection)
    budget = parse_budget(str(bits)).nbytes(weighing.parameters)
    energy = sum((x.astype(np.float64) ** 2).sum() for x in matrices(weights).values())
    expected = best_by_brute_force(
        weights, budget, lambda name, x, y: ((x - y) ** 2).sum() / energy
    )
    found = assign_schemes(weighing, budget)
    assert found.exact
    assert found.point.error == pytest.approx(expected, rel=1e-5)
    assert found.point.nbytes <= budget
    kept = kept_bytes(weights)
    assert found.point.nbytes == kept + sum(c.nbytes for c in found.choices)
    for choice in found.choices:
        x = weights[choice.name]
        stored = (
            x.nbytes if choice.scheme is None else quantize(x, Scheme.parse(choice.scheme)).nbytes
        )
        assert choice.nbytes == stored


def test_by_outputs_is_the_error_of_the_products_whose_inputs_correlate(model, weights):
    schemes = [*SCHEMES, *map(Scheme.parse, ("ternary", "int4:stochastic", "mxfp4"))]
    inputs = {name: LayerInputs(correlated(x.shape[1])) for name, x in matrices(weights).items()}
    found = layer_errors(model, inputs, schemes, full=True)
    for name, x in matrices(weights).items():
        assert found[name].tokens == 300
        for scheme, error in zip(schemes, found[name].relative_mse, strict=True):
            expected = product_error(weights, name, quantize(x, scheme).dequantize())
            assert error == pytest.approx(expected, rel=1e-4), (name, scheme)
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_outputs(inspection, layer_errors(model, inputs, SCHEMES, full=True))
    budget = parse_budget("4.5").nbytes(weighing.parameters)
    expected = best_by_brute_force(
        weights, budget, lambda name, x, y: product_error(weights, name, y) / 4
    )
    assignment = assign_schemes(weighing, budget)
    assert assignment.point.error == pytest.approx(expected, rel=1e-4)
    assert assignment.tokens == (300, 300)
    assert "of the layers' outputs" in assignment.conclusion


def test_a_sample_of_rows_is_a_sample_of_outputs(model, weights, monkeypatch):
    monkeypatch.setattr(sample, "LOCAL_LIMIT", 20 * 128)
    x, rows = weights["a.weight"], correlated(128)
    scheme = Scheme.parse("nf4")
    found = layer_errors(model, {"a.weight": LayerInputs(rows)}, [scheme])["a.weight"]
    strips = sample.sample_rows(64, 128, 20 * 128).strips
    taken = np.concatenate([np.arange(*strip) for strip in strips])
    assert 0 < taken.size < 64
    part = {"a.weight": x[taken], "a.bias": weights["a.bias"][taken]}
    expected = product_error(part, "a.weight", quantize(x[taken], scheme).dequantize())
    assert found.relative_mse[0] == pytest.approx(expected, rel=1e-4)


def test_the_conclusion_says_what_the_gain_is_in_equal_bytes_and_where_it_comes_from(model):
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_weights(inspection)
    found = assign_schemes(weighing, parse_budget("7").nbytes(weighing.parameters))
    smaller = [u for u in found.uniform if u.point.nbytes <= found.point.nbytes]
    best = max(smaller, key=lambda u: u.point.sqnr_db)
    gain = best.assigned.sqnr_db - best.point.sqnr_db
    gained = f"the gain is {gain:.1f} dB" if gain > 0.1 else "nothing is gained"
    assert (
        f"{found.point.sqnr_db - best.point.sqnr_db:.1f} dB more than {best.scheme} for every "
        f"tensor, which takes {best.point.bits_per_parameter:.2f} bits (in its bytes {gained})"
    ) in found.conclusion
    saved = {
        choice.name: tensor.options[tensor.schemes.index(best.scheme)].error - choice.error
        for tensor, choice in zip(weighing.tensors, found.choices, strict=True)
    }
    name = max(saved, key=saved.get)
    share = math.floor(100 * saved[name] / sum(max(0, s) for s in saved.values()))
    assert f"'{name}' (" in found.conclusion
    assert f" has {share}% of the gain" in found.conclusion
    assert found.conclusion.endswith("% of the parameters.")


def test_by_predictions_the_nats_add_up_with_their_error_over_windows(model, weights):
    rng = np.random.default_rng(4)
    nats = {
        name: tuple(
            tuple(float(each) for each in scale * rng.exponential(size=6))
            for scale in (1e-2, 1e-3, 1e-5)
        )
        for name in matrices(weights)
    }
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_predictions(inspection, PredictionErrors("kl", "it", 64, 31, 6, nats))
    found = assign_schemes(weighing, parse_budget("5.5").nbytes(weighing.parameters))
    number = {str(scheme): index for index, scheme in enumerate(SCHEMES)}
    sums = np.zeros(6)
    for choice in found.choices:
        windows = np.zeros(6)
        if choice.scheme is not None:
            windows = np.array(nats[choice.name][number[choice.scheme]])
            assert choice.stderr == pytest.approx(windows.std(ddof=1) / 6**0.5)
        assert choice.error == pytest.approx(windows.mean())
        sums += windows
    assert found.point.error == pytest.approx(sums.mean())
    assert found.stderr == pytest.approx(sums.std(ddof=1) / 6**0.5)
    assert found.read == ("6 windows of 64 tokens of the first half of it, 186 tokens scored")
    best = min(
        (u for u in found.uniform if u.point.nbytes <= found.point.nbytes),
        key=lambda u: u.point.error,
    )
    assert (
        f" is {found.point.error:.2g} nats a token from the original by the sum of what each "
        f"tensor was measured to do alone, with "
    ) in found.conclusion
    times = best.point.error / found.point.error
    assert f", {times:.2f} times nearer than {best.scheme} for every" in found.conclusion
    data = printed(found)
    assert data["kl_sum"] == found.point.error
    assert data["kl_sum_stderr"] == found.stderr
    assert data["relative_error"] is data["relative_error_bound"] is data["sqnr_db"] is None


def test_the_smallest_budget_leaves_nothing_to_say_about_tensors(model):
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_weights(inspection)
    smallest = assign_schemes(weighing, parse_budget("16").nbytes(weighing.parameters)).frontier[0]
    found = assign_schemes(weighing, smallest.nbytes)
    assert {c.scheme for c in found.choices} == {"int3:group64"}
    assert "no tensor stands out" not in found.conclusion
    assert "these schemes allow no smaller one, so there are no bits to give" in found.conclusion
    better = next(p for p in found.frontier if p.sqnr_db >= smallest.sqnr_db + 1)
    assert (
        f"a budget of {better.bits_per_parameter:.2f} bits would reach {better.sqnr_db:.1f} dB"
        in found.conclusion
    )


def test_a_tensor_whose_inputs_were_not_seen_is_named_and_counts_by_its_weights(model, weights):
    inspection = inspect_model(model, SCHEMES, full=True)
    broken = np.full((4, 128), np.nan, np.float32)
    seen = {"a.weight": LayerInputs(correlated(128)), "c.weight": LayerInputs(broken)}
    weighing = weigh_by_outputs(inspection, layer_errors(model, seen, SCHEMES))
    assert weighing.unweighed == ("b.weight", "c.weight", "d.weight")
    reports = {t.info.name: t for t in inspection.tensors}
    for tensor in weighing.tensors[1:]:
        for option, error in zip(tensor.options, reports[tensor.name].errors, strict=False):
            assert option.error * 4 == pytest.approx(error.relative_mse, rel=1e-5)


def test_of_a_transposed_weight_the_rows_are_the_inputs(model, weights, monkeypatch):
    monkeypatch.setattr(sample, "LOCAL_LIMIT", 1024)  # a sample of its inputs would be no layer
    x, rows = weights["b.weight"], correlated(128)
    inputs = {"b.weight": LayerInputs(rows, transposed=True)}
    found = layer_errors(model, inputs, SCHEMES)["b.weight"].relative_mse
    for scheme, error in zip(SCHEMES, found, strict=True):
        wrong = rows.astype(np.float64) @ (quantize(x, scheme).dequantize() - x)
        expected = (wrong**2).sum() / ((rows.astype(np.float64) @ x) ** 2).sum()
        assert error == pytest.approx(expected, rel=1e-4)


def test_the_frontier_and_the_uniform_points_agree_with_what_was_measured(model, weights):
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_weights(inspection)
    found = assign_schemes(weighing, default_budget(inspection, weighing))
    for point, total in zip(found.uniform, inspection.schemes, strict=True):
        assert point.scheme == total.scheme
        assert point.point.nbytes == total.nbytes
        assert point.point.sqnr_db == pytest.approx(total.sqnr_db)
        assert point.assigned.nbytes <= point.point.nbytes
        assert (point.assigned.sqnr_db or math.inf) >= total.sqnr_db - 1e-9
    errors = [p.error for p in found.frontier]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0  # everything as stored


def test_a_budget_that_cannot_be_met_names_the_least(model):
    inspection = inspect_model(model, SCHEMES, full=True)
    weighing = weigh_by_weights(inspection)
    bits = f"{8 * 100 / weighing.parameters:.2f}"
    asked = rf"100 bytes \({re.escape(bits)} bits per parameter\) cannot be met: "
    with pytest.raises(UsageError, match=asked + r".* no smaller than [\d,]+ bytes \([\d.]+\)"):
        assign_schemes(weighing, 100)


def test_one_scale_for_all_tensors_is_no_option():
    with pytest.raises(UsageError, match="int4:tensor"):
        refuse_shared_scales([Scheme.parse("int4:model")])


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4.5", 562),
        ("16", 2000),
        ("1KiB", 1024),
        ("2 MB", 2_000_000),
        ("0.5gib", 1 << 29),
        ("7B", 7),
    ],
)
def test_budgets(text, nbytes):
    assert parse_budget(text).nbytes(1000) == nbytes


@pytest.mark.parametrize(
    "text", ["", "x", "4.5bits", "-3", "0", "nan", "inf", "65", "1e9", "GiB", "9" * 300 + "TiB"]
)
def test_no_budgets(text):
    with pytest.raises(UsageError):
        parse_budget(text)


@pytest.mark.slow
def test_what_the_readme_says_of_objectives_holds_on_the_demo():
    """The divergence of the demo model's predictions under the assignments of three objectives,
    computed by transformers on text by which nothing was chosen."""
    import torch
    from transformers import AutoModelForCausalLM

    from qtui_core.activations.layer_inputs import layer_inputs
    from qtui_core.evaluation.sensitivity.fisher import estimates
    from qtui_core.loading.text import text_to_choose_by
    from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT

    raw, text = HELD_BACK_TEXT.read_bytes(), text_to_choose_by(None, demo=True)
    schemes = [Scheme.parse(t) for t in ("nf4:dq", "int4:asym", "int8", "e4m3")]
    with open_model("demo") as source:
        inspection = inspect_model(source, schemes, full=True)
        names = [t.info.name for t in inspection.tensors if t.errors]
        inputs = layer_inputs(source, names, text)
        by_predictions = weigh_by_predictions(inspection, estimates(source, names, schemes, text))
        by_outputs = weigh_by_outputs(inspection, layer_errors(source, inputs, schemes, full=True))
    ids = torch.frombuffer(bytearray(raw[-8192:]), dtype=torch.uint8).long().view(-1, 256)

    def predictions(assignment):
        model = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32)
        with torch.inference_mode():
            for name, weight in model.named_parameters():
                if (scheme := assignment.get(name)) is not None:
                    stored = quantize(weight.numpy(), Scheme.parse(scheme)).dequantize()
                    weight.copy_(torch.from_numpy(stored))
            return torch.log_softmax(model(input_ids=ids).logits, -1)

    original = predictions({})
    divergence = []
    for weighing in (weigh_by_weights(inspection), by_outputs, by_predictions):
        budget = parse_budget("4.5").nbytes(weighing.parameters)
        chosen = {c.name: c.scheme for c in assign_schemes(weighing, budget).choices}
        changed = predictions(chosen)
        divergence.append(float((original.exp() * (original - changed)).sum(-1).mean()))
    assert divergence == pytest.approx([0.0028, 0.0039, 0.0025], rel=0.15)
    assert divergence[2] < divergence[0] < divergence[1]


def test_an_assignment_that_is_one_scheme_is_not_beside_itself(model):
    """In the bytes of one scheme for all nothing gains; the larger budget reaches what it says."""
    one = inspect_model(model, SCHEMES, full=True, pattern="a.weight")
    weighing = weigh_by_weights(one)
    whole = assign_schemes(weighing, parse_budget("16").nbytes(weighing.parameters))
    nf4 = next(u for u in whole.uniform if u.scheme.startswith("nf4"))
    said = assign_schemes(weighing, nf4.point.nbytes).conclusion
    assert "for the one tensor: no better assignment was found in that budget." in said
    assert "hardly more" not in said
    smallest = assign_schemes(weighing, whole.frontier[0].nbytes).conclusion
    budget, reach = re.search(r"budget of ([\d.]+) bits would reach ([\d.]+) dB", smallest).groups()
    larger = assign_schemes(weighing, math.ceil(float(budget) * weighing.parameters / 8) + 8)
    assert larger.point.sqnr_db >= float(reach) - 0.05
