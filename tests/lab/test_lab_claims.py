"""The lab's claims about low precision: each is tested small and fast, and slowly on the demo."""

import math

import numpy as np
import pytest
from every import every
from lab_runs import conducted, little_held_out, outcomes_of, small_subject
from lazy_imports import LazyImport

from qtui_core.job import IDLE

torch = LazyImport("torch")
eagerly = LazyImport("qtui_core.lab.training.recipes", "eagerly")
libraries = LazyImport("qtui_core.lab.experiments.optimizers")
matmul = LazyImport("qtui_core.lab.experiments.matmul")
ratchet = LazyImport("qtui_core.lab.numerics.state_maps")
rounding = LazyImport("qtui_core.lab.numerics.rounding")
tasks = LazyImport("qtui_core.lab.training.tasks")
twins = LazyImport("qtui_core.lab.training.twins")
survive = LazyImport("qtui_core.lab.experiments.survive")


def some_weights(count=200_000):
    """(weights as in a model, updates of AdamW divided by the learning rate)."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(count, generator=generator) * 0.05
    return weight, torch.rand(count, generator=generator) * 2 - 1


# --- what is lost of an update


def test_the_formula_and_the_cast_lose_the_same_updates():
    """An update below half of the distance to the next number is lost, computed by numpy alone;
    below a power of two that distance is half as large."""
    weight, u = some_weights()

    for name, mantissa, rate in [
        (n, p, rate) for n, p in (("bf16", 7), ("fp16", 10)) for rate in (1e-3, 1e-4, 1e-5)
    ]:
        storage = rounding.STORAGES[name].unscaled
        stored = storage.nearest(weight)
        wanted, lost, _, _ = survive.reach(storage, weight, -rate * u)
        w, delta = stored.double().numpy(), (-rate * u).double().numpy()
        fraction, exponent = np.frexp(np.abs(w))
        half = np.ldexp(1.0, exponent - 1 - mantissa - 1)
        half = np.where((fraction == 0.5) & (np.sign(w) != np.sign(delta)), half / 2, half)
        formula = np.mean((np.abs(delta) < half)[delta != 0])
        assert abs(lost / wanted - formula) < 1e-3


def test_a_step_at_a_small_rate_is_lost_to_nearest_and_arrives_stochastically():
    weight, u = some_weights()
    storage = rounding.STORAGES["bf16"]
    delta = -1e-5 * u
    _, _, arrived, whole = survive.reach(storage, weight, delta)
    assert arrived / whole < 0.15
    stored = storage.nearest(weight)
    moved = storage.stochastic(stored + delta, torch.Generator().manual_seed(7)) - stored
    kept = float((moved.double() * delta.double()).sum()) / whole
    assert kept == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_runs_keep_the_share_that_one_step_keeps():
    """The runs keep 4 % to nearest and 99 % stochastically. torchao's own are in
    test_lab_lowbit.py."""
    runs = ("fp32", "nearest", "stochastic")
    with little_held_out(16):
        _, found = outcomes_of("underflow", "updates", "null", *runs, lr=1e-5, steps=8)
    run = {r["stored"].split(",")[0]: r for r in found.rows if "steps run" in r["stored"]}
    shares = [r for r in found.rows if r["part"] == "all" and "kept" in r]
    # Norms are the last.
    assert "BF16 alone keeps 90% of every tensor from lr 0.01 on." in found.verdict
    assert run["bf16 nearest"]["gain"] < 0.15
    assert run["bf16 stochastic"]["gain"] > 0.9
    here = next(r for r in shares if (r["stored"], r["lr"]) == ("bf16", 1e-5))
    assert run["bf16 nearest"]["gain"] == pytest.approx(here["kept"], abs=0.06)
    for stored in ("bf16", "fp16", "e4m3", "int8"):
        lost = [r["lost"] for r in shares if r["stored"] == stored]  # from the largest rate on
        assert lost == sorted(lost)


# --- second moments that cannot fall


def ratios(beta2, loud, quiet, *names):
    """v of the quiet half divided by that of fp32, by map."""
    courses = {n: ratchet.ratchet(n, beta2, loud, quiet, IDLE) for n in ("fp32", *names)}
    ends = {name: list(course.values())[-1] for name, course in courses.items()}
    return {name: ends[name] / ends["fp32"] for name in names}


def test_a_second_moment_of_few_bits_ratchets_at_a_long_memory_and_not_at_a_short_one():
    long = ratios(0.999, 300, 2500, "bf16", "8-bit", "bf16 stochastic")
    assert min(long["bf16"], long["8-bit"]) > 5
    assert long["bf16 stochastic"] == pytest.approx(1, abs=0.05)
    short = ratios(0.95, 200, 400, "bf16", "8-bit")
    assert short == pytest.approx({"bf16": 1, "8-bit": 1}, abs=0.02)


def test_a_ratchet_is_told_with_what_follows_and_what_it_costs():
    def said(beta2=0.999, **given):
        courses = {name: {1: 1.0, 2: ratio / 100} for name, ratio in given.items()}
        found = ratchet.concluded(courses, beta2)
        return [row["judged"] for row in found.rows], *found.notes

    judged, told = said(**{"fp32": 4.8, "bf16": 88.0, "bf16 stochastic": 4.8, "8-bit": 56.0})
    assert judged == ["falls", "stuck", "falls", "stuck"]
    assert told == (
        "At beta2 0.999 a second moment in bf16 and 8-bit rises and does not fall as it should (in "
        "bf16 steps are 4.3 times too small); fp32 (4) and bf16 stochastic (2) bytes an element "
        "follow."
    )
    assert "falls as it should in fp32 and bf16." in said(fp32=1.0, bf16=1.0)[1]
    assert "fp32 itself has hardly fallen" in said(fp32=95.0, bf16=95.0)[1]
    judged, told = said(fp32=1.0, fp8=0.01)
    assert judged == ["falls", "falls too far"]
    assert "in fp32." in told


# --- the three products


def made_operands(monkeypatch):
    """Layers whose channels, rows and tokens differ in size, as in a real model."""

    def made(text, model, only=None):
        generator = torch.Generator().manual_seed(0)

        def sized(rows, columns, spread_rows, spread_columns):
            size = torch.exp(spread_rows * torch.randn(rows, 1, generator=generator))
            size = size * torch.exp(spread_columns * torch.randn(1, columns, generator=generator))
            return torch.randn(rows, columns, generator=generator) * size

        return {
            str(n): matmul.LayerOperands(
                sized(128, 96, 0.3, 0.6), sized(64, 96, 0.4, 0.2), sized(128, 64, 1.2, 0.5) * 1e-5
            )
            for n in range(3)
        }

    monkeypatch.setattr("qtui_core.lab.experiments.matmul.capture", made)


def test_products_lose_in_the_order_of_their_scales(monkeypatch):
    """The order that theory predicts, for any model."""
    made_operands(monkeypatch)
    integers = ("int8 row", "int8 tile", "int8 tensor")
    names = (*integers, "fp8 unscaled", "fp8 tensor e5m2", "fp8 tensor", "fp8 row")
    outcomes = {
        "schemes": matmul.schemes(None, "", names, IDLE),
        "axis": matmul.axis(None, "", IDLE),
    }
    at = {row["scheme"]: row for row in matmul.conclude({}, outcomes).rows}
    for product in ("dx", "dw"):
        row, tile, tensor = (at[f"int8 {kind}"][product] for kind in ("row", "tile", "tensor"))
        assert row < tile < tensor, product
        e4m3, e5m2 = at["fp8 tensor"][product], at["fp8 tensor e5m2"][product]
        assert e4m3 < e5m2 < at["fp8 unscaled"][product], product
        assert at["fp8 row"][product] < at["fp8 unscaled"][product]
    folded, again, mean = (
        at[f"int8 weight by rows: {way}"]["dx"]
        for way in ("folded into G", "requantized", "mean of scales")
    )
    assert folded < again < mean
    assert mean > 5 * again


# --- layers add up, and twins stay together


def test_errors_of_layers_add_up(monkeypatch):
    """In `nano`, which has few layers; what does not add up within a tenth is said."""
    subject = small_subject(batch=2, sequence=64)
    monkeypatch.setattr("qtui_core.lab.experiments.matmul.subject_of", lambda *given: subject)
    found = matmul.layer_errors(None, "", "int8 row", IDLE)
    summed = math.sqrt(sum(row["gradient"] ** 2 for row in found.rows))
    assert found.pictures[0].line[0] == (0.0, pytest.approx(summed))
    assert f"Under int8 row the gradient is {summed:.1%}"[:-3] in found.notes[0]
    monkeypatch.setattr("qtui_core.lab.experiments.matmul._ADDS_UP", 0.0)
    found = matmul.layer_errors(None, "", "int8 row", IDLE)
    assert f"do not add up here ({summed:.3g} against " in found.notes[0]


def apart(subject, recipe, steps, lr):
    """The difference between a recipe and its twin after some steps, nats per token."""
    runs = [
        twins.train(subject, each, seed=0, steps=steps, lr=lr, job=IDLE)
        for each in (recipe, twins.Recipe())
    ]
    return abs(twins.difference(*runs))


def test_a_millionth_on_the_weights_and_states_of_eight_bits_change_next_to_nothing():
    subject = small_subject(batch=2, sequence=64)
    assert apart(subject, twins.null(), 8, 1e-3) < 3e-4

    def check(name, most):
        recipe = twins.Recipe(
            optimizer=lambda model, lr: libraries.make(name, model.parameters(), lr, (0.9, 0.95))
        )
        with eagerly():
            assert apart(subject, recipe, 8, 3e-4) < most

    every([("bf16", 0.001), ("torchao 8-bit", 0.003), ("torchao 4-bit", 0.03)], check)


@pytest.mark.slow
def test_states_of_eight_bits_train_the_demo_as_fp32_does():
    """The disturbed twin determines the floor."""
    names = ("torchao 8-bit", "torchao 4-bit")
    with little_held_out():
        _, result = conducted("optimizers", steps=8, optimizers=names)
    assert result.findings.floor < 3e-4
    at = {row["states"]: row for row in result.findings.rows}
    assert abs(at["torchao 8-bit"]["d"]) < 0.003
    assert abs(at["torchao 4-bit"]["d"]) < 0.01
    assert at["torchao 8-bit"]["nbytes"] == 9_278_464
    assert at["fp32"]["nbytes"] == 36_464_640
