"""Which scheme for which tensor, against trying every assignment with the libraries' numbers."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from qtui_core.errors import UsageError
from qtui_core.inspection.budget import parse_budget
from qtui_core.inspection.inspect import inspect_model
from qtui_core.inspection.sensitivity import assign_schemes, default_budget
from qtui_core.inspection.weighing import (
    InputMoments,
    refuse_shared_scales,
    weigh_by_outputs,
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


def best_by_brute_force(weights, budget, error_of):
    """The least total of `error_of(name, x, y)` over every assignment that fits."""
    kept = weights["norm.weight"].nbytes
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
    assert found.point.relative_error == pytest.approx(expected, rel=1e-5)
    assert found.point.nbytes <= budget
    kept = weights["norm.weight"].nbytes
    assert found.point.nbytes == kept + sum(c.nbytes for c in found.choices)
    for choice in found.choices:
        x = weights[choice.name]
        stored = (
            x.nbytes if choice.scheme is None else quantize(x, Scheme.parse(choice.scheme)).nbytes
        )
        assert choice.nbytes == stored


def test_by_outputs_equals_the_error_of_the_products(model, weights):
    """With inputs whose channels are independent, the weighted error is that of the output."""
    rng = np.random.default_rng(8)
    spread = {64: np.geomspace(0.01, 10, 64), 128: np.geomspace(20, 0.1, 128)}
    moments = {name: spread[x.shape[1]] for name, x in matrices(weights).items()}
    inspection = inspect_model(model, SCHEMES, full=True)
    inputs = {name: InputMoments(values) for name, values in moments.items()}
    weighing = weigh_by_outputs(model, inspection, inputs, full=True)
    by_name = {t.name: dict(zip(t.schemes, t.options, strict=True)) for t in weighing.tensors}
    for name, x in matrices(weights).items():
        inputs = rng.standard_normal((60_000, x.shape[1])) * np.sqrt(moments[name])
        for scheme in SCHEMES:
            wrong = inputs @ (x - quantize(x, scheme).dequantize()).T.astype(np.float64)
            relative = (wrong**2).sum() / ((inputs @ x.T.astype(np.float64)) ** 2).sum()
            option = by_name[name][str(scheme)]
            assert option.error * 4 == pytest.approx(relative, rel=0.06)
    budget = parse_budget("4.5").nbytes(weighing.parameters)
    expected = best_by_brute_force(
        weights,
        budget,
        lambda name, x, y: ((x - y) ** 2 @ moments[name]).sum() / (x**2 @ moments[name]).sum() / 4,
    )
    found = assign_schemes(weighing, budget)
    assert found.point.relative_error == pytest.approx(expected, rel=1e-5)
    assert "of the layers' outputs" in found.conclusion


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
    inputs = {
        name: InputMoments(np.ones(x.shape[1]))
        for name, x in matrices(weights).items()
        if name != "c.weight"
    }
    weighing = weigh_by_outputs(model, inspection, inputs, full=True)
    assert weighing.unweighed == ("c.weight",)
    # Equal second moments are no weights at all.
    for tensor, report in zip(
        weighing.tensors, (t for t in inspection.tensors if t.errors), strict=True
    ):
        for option, error in zip(tensor.options, report.errors, strict=False):
            assert option.error * 4 == pytest.approx(error.relative_mse, rel=1e-5)


def test_of_a_transposed_weight_the_rows_are_the_inputs(model, weights):
    x = weights["a.weight"].astype(np.float64)
    moments = np.geomspace(0.01, 10, 64)
    inspection = inspect_model(model, SCHEMES, full=True)
    inputs = {"a.weight": InputMoments(moments, transposed=True)}
    weighing = weigh_by_outputs(model, inspection, inputs, full=True)
    for scheme, option in zip(SCHEMES, weighing.tensors[0].options, strict=False):
        wrong = x - quantize(x.astype(np.float32), scheme).dequantize()
        expected = (moments @ wrong**2).sum() / (moments @ x**2).sum()
        assert option.error * 4 == pytest.approx(expected, rel=1e-5)


def test_the_frontier_and_the_uniform_points_agree_with_what_was_measured(model, weights):
    inspection = inspect_model(model, SCHEMES, full=True)
    found = assign_schemes(weigh_by_weights(inspection), default_budget(inspection))
    for point, total in zip(found.uniform, inspection.schemes, strict=True):
        assert point.scheme == total.scheme
        assert point.point.nbytes == total.nbytes
        assert point.point.sqnr_db == pytest.approx(total.sqnr_db)
        assert point.assigned.nbytes <= point.point.nbytes
        assert (point.assigned.sqnr_db or math.inf) >= total.sqnr_db - 1e-9
    errors = [p.relative_error for p in found.frontier]
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
