"""The scheme for each tensor, compared with brute force over all assignments, with errors computed
by other libraries."""

import itertools
import re

import numpy as np
import pytest
from every import over
from safetensors.numpy import save_file

from qtui_core.answers import PredictionErrors
from qtui_core.codec import printed
from qtui_core.errors import UsageError
from qtui_core.evaluation.sensitivity.assign import assign_schemes, default_budget, weigh
from qtui_core.evaluation.sensitivity.settings import parse_budget
from qtui_core.inspection.inspect import inspect_model, refuse_model_scale
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


@pytest.fixture(scope="module")
def inspection(model):
    return inspect_model(model, SCHEMES, full=True)


def matrices(weights):
    return {name: x for name, x in weights.items() if x.ndim == 2}


def assigned(weighing, budget):
    return assign_schemes(weighing, parse_budget(budget).nbytes(weighing.parameters))


@over("bits", [3.7, 4.0, 4.5, 5.5, 8.0, 12.0, 20.0])
def test_by_weights_the_best_is_between_the_bound_and_what_is_found(inspection, weights, bits):
    weighing = weigh(inspection)
    energy = sum((x.astype(np.float64) ** 2).sum() for x in matrices(weights).values())
    kept = sum(x.nbytes for x in weights.values() if x.ndim == 1)
    options, stored = [], {}
    for name, x in matrices(weights).items():
        rows = [(x.nbytes, 0.0)]
        stored[name, None] = x.nbytes
        for scheme in SCHEMES:
            q = quantize(x, scheme)
            lost = ((x.astype(np.float64) - q.dequantize()) ** 2).sum()
            stored[name, str(scheme)] = q.nbytes
            rows.append((q.nbytes, lost / energy))
        options.append(rows)
    found = assigned(weighing, str(bits))
    best = min(
        sum(error for _, error in combination)
        for combination in itertools.product(*options)
        if sum(nbytes for nbytes, _ in combination) + kept <= found.budget
    )
    assert found.bound * (1 - 1e-5) <= best <= found.point.error * (1 + 1e-5)
    assert found.point.error <= 1.2 * best + 1e-12
    assert found.point.nbytes <= found.budget
    assert found.point.nbytes == kept + sum(c.nbytes for c in found.choices)
    assert all(c.nbytes == stored[c.name, c.scheme] for c in found.choices)


def test_by_predictions_the_nats_add_up_with_their_error_over_windows(inspection, weights):
    rng = np.random.default_rng(4)
    nats = {
        name: tuple(
            tuple((scale * rng.exponential(size=6)).tolist()) for scale in (1e-2, 1e-3, 1e-5)
        )
        for name in matrices(weights)
    }
    found = assigned(weigh(inspection, PredictionErrors("kl", "it", 64, 31, 6, nats)), "5.5")
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
    smaller = [u for u in found.uniform if u.point.nbytes <= found.point.nbytes]
    best = min(smaller, key=lambda u: u.point.error)
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


def test_the_conclusion_of_the_smallest_budget_and_of_another(inspection):
    weighing = weigh(inspection)
    smallest = assigned(weighing, "16").frontier[0]
    found = assign_schemes(weighing, smallest.nbytes)
    assert {c.scheme for c in found.choices} == {"int3:group64"}
    assert found.conclusion.endswith("these schemes allow no smaller one.")
    found = assigned(weigh(inspection), "7")
    smaller = [u for u in found.uniform if u.point.nbytes <= found.point.nbytes]
    best = max(smaller, key=lambda u: u.point.sqnr_db)
    assert found.conclusion.endswith(
        f"{found.point.sqnr_db - best.point.sqnr_db:.1f} dB more than {best.scheme} for every "
        f"tensor, which takes {best.point.bits_per_parameter:.2f} bits."
    )


def test_an_assignment_that_is_one_scheme_is_not_beside_itself(model):
    weighing = weigh(inspect_model(model, SCHEMES, full=True, pattern="a.weight"))
    whole = assigned(weighing, "16")
    nf4 = next(u for u in whole.uniform if u.scheme.startswith("nf4"))
    said = assign_schemes(weighing, nf4.point.nbytes).conclusion
    assert "for 1 tensor: no better assignment was found in that budget." in said


def test_the_frontier_and_the_uniform_points_agree_with_what_was_measured(inspection):
    weighing = weigh(inspection)
    found = assign_schemes(weighing, default_budget(inspection, weighing))
    for point, total in zip(found.uniform, inspection.schemes, strict=True):
        assert point.scheme == total.scheme
        assert point.point.nbytes == total.nbytes
        assert point.point.sqnr_db == pytest.approx(total.sqnr_db)
    errors = [p.error for p in found.frontier]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0.0  # everything as stored


def test_what_cannot_be_assigned_is_refused(inspection):
    with pytest.raises(UsageError, match="int4:tensor"):
        refuse_model_scale([Scheme.parse("int4:model")])
    weighing = weigh(inspection)
    bits = f"{8 * 100 / weighing.parameters:.2f}"
    least = rf"100 bytes \({re.escape(bits)} bits per parameter\) cannot be met: "
    with pytest.raises(UsageError, match=least + r".* no smaller than [\d,]+ bytes \([\d.]+\)"):
        assign_schemes(weighing, 100)


@over(
    ("text", "nbytes"),
    [("4.5", 562), ("16", 2000), ("1KiB", 1024), ("2 MB", 2e6), ("0.5gib", 1 << 29), ("7B", 7)],
)
def test_budgets(text, nbytes):
    assert parse_budget(text).nbytes(1000) == nbytes


@over("text", ["", "x", "4.5bits", "-3", "0", "nan", "inf", "65", "1e9", "GiB", "9" * 300 + "TiB"])
def test_no_budgets(text):
    with pytest.raises(UsageError):
        parse_budget(text)


@pytest.mark.slow
def test_gradients_choose_better_than_weights_on_the_demo():
    """The divergence of the demo model's predictions under the assignments of two objectives,
    computed by transformers on text by which nothing was chosen."""
    import torch
    from transformers import AutoModelForCausalLM

    from qtui_core.evaluation.sensitivity.predictions import prediction_errors
    from qtui_core.loading.text import text_to_choose_by
    from qtui_core.models.demo import DEMO_FOLDER, HELD_BACK_TEXT

    raw, text = HELD_BACK_TEXT.read_bytes(), text_to_choose_by(None, demo=True)
    schemes = [Scheme.parse(t) for t in ("nf4:dq", "int4:asym", "int8", "e4m3")]
    with open_model("demo") as source:
        inspection = inspect_model(source, schemes, full=True)
        names = [t.info.name for t in inspection.tensors if t.errors]
        estimated = prediction_errors("fisher", source, names, schemes, text)
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
    for weighing in (weigh(inspection), weigh(inspection, estimated)):
        changed = predictions(assigned(weighing, "4.5").schemes)
        divergence.append(float((original.exp() * (original - changed)).sum(-1).mean()))
    assert divergence == pytest.approx([0.0028, 0.0025], rel=0.15)
    assert divergence[1] < divergence[0]
