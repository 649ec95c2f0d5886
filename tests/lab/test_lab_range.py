"""The precision range test: its products, its schedule, both figures, and the sentences about
them."""

from __future__ import annotations

import itertools

import pytest
from every import every
from lab_runs import little_held_out, made_run, outcomes_of, small_subject
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.lab.catalog import experiment_named

torch = LazyImport("torch")
range_test = LazyImport("qtui_core.lab.experiments.range_test")
twins = LazyImport("qtui_core.lab.training.twins")

STEPS = 20


def settled(**given):
    return experiment_named("range-test").settle({"steps": STEPS, **given})


def said(outcomes, **given):
    return range_test.conclude(settled(**given), outcomes)


def course(behind=0.0, slope=0.1, **more):
    losses = [5 - slope * step for step in range(STEPS)]
    losses[-10:] = [loss + behind for loss in losses[-10:]]
    return made_run(*losses, **more)


def outcomes(gaps, slope=0.1, **cycles):
    found = {"fp32 0": course(slope=slope), "null 0": course(1e-5, slope)}
    for bits, gap in gaps.items():
        facts = {"operations": bits * bits / 64}
        found[f"{bits} bits 0"] = course(gap, slope, facts=facts)
    for periods, gap in cycles.items():
        found[f"cycle {periods[1:]} 0"] = course(gap, slope, facts={"operations": 0.5})
    return found


GAPS = {2: 0.4, 3: 0.2, 4: 0.08, 5: 0.004, 6: -0.02, 8: 0.001}


def test_the_cycle_is_the_published_one():
    """Each period goes from low to high by half a cosine; a period of 8 steps is computed by
    hand."""
    widths = [range_test.width_at(step, 16, 2, 3, 8) for step in range(16)]
    assert widths[:8] == widths[8:]
    assert widths[:8] == [3, 3, 4, 5, 6, 6, 7, 8]
    every(
        [(3, 8, 32), (2, 8, 5)],
        lambda low, high, periods: every(
            range(64), lambda step: low <= range_test.width_at(step, 64, periods, low, high) <= high
        ),
    )


def test_layers_turn_from_width_to_width_and_are_evaluated_at_the_last():
    """With few bits a single step is far from float32; all widths train."""
    subject = small_subject()
    seeing = {"seed": 0, "lr": 1e-3, "see": lambda *at: None}
    seen = []
    recipe = range_test.scheduled([2, 8], 5, 0)
    stepped = recipe.stepped

    def spy(model, step):
        stepped(model, step)
        layers = [m for m in model.modules() if type(m).__name__ == "QuantizedLinear"]
        seen.append({layer.products.x.storage for layer in layers})

    recipe.stepped = spy
    turned = twins.train(subject, recipe, steps=2, **seeing)
    assert seen == [{"int8"}, {"int5"}]
    exact = twins.train(subject, twins.Recipe(), steps=1, **seeing)
    assert turned.losses[0] != exact.losses[0]
    assert abs(turned.losses[0] - exact.losses[0]) < 0.5


def test_gradients_stay_in_8_bits_and_are_rounded_stochastically():
    made = range_test.products_of(4)
    assert {o.storage for o in (made.x, made.w, made.w_dx, made.x_dw)} == {"int4"}
    assert not made.x.stochastic
    assert {(o.storage, o.stochastic) for o in (made.g_dx, made.g_dw)} == {("int8", True)}


def test_both_figures():
    assert range_test.least_matching(GAPS, 0.03) == 5
    assert range_test.least_matching({2: 0.0, 3: 0.5, 4: 0.0}, 0.03) == 4
    assert range_test.least_matching({2: 0.0, 3: None, 4: 0.5}, 0.03) is None
    assert range_test.least_learning({2: 0.4, 3: 0.9}, 0.5) == 3
    assert range_test.least_learning({2: None}, 0.5) is None


def test_the_verdict_tells_both():
    assert said({}).verdict == ""
    found = outcomes(GAPS, p1=0.1, p2=0.09, p4=0.2)
    verdict = said(found).verdict
    assert verdict.startswith(
        "At lr 0.001, 20 steps and one seed, learning as fp32 does takes 5 bits (B_match, within "
        "0.03 nats; 0.625 bytes a value in place of 4); the published test is passed from 2 bits "
        "on (B_learn), which are 0.4 nats behind."
    )
    del found["null 0"]
    assert said(found).verdict == ""


def test_a_twin_that_does_not_improve_leaves_the_published_test_without_an_answer():
    verdict = said(outcomes(GAPS, slope=0.0)).verdict
    assert "takes 5 bits" in verdict
    assert "the published test has no answer" in verdict


def test_no_width_may_do_and_widths_may_diverge():
    found = outcomes(dict.fromkeys(GAPS, 0.5))
    assert "no width up to 8 bits stays within 0.03 nats of fp32" in said(found).verdict
    found = outcomes(GAPS)
    found["2 bits 0"] = made_run(5.0, float("nan"), diverged=2, first="the loss", held_after=None)
    made = said(found)
    assert made.rows[0]["seen"] == "diverged"
    assert "from 3 bits on (B_learn)" in made.verdict


def test_a_cycle_that_cannot_be_is_a_sentence():
    every(
        [({"low": 6, "high": 4}, "--low 6"), ({"periods": (32,)}, "--periods 32")],
        lambda given, words: _refused(given, words),
    )


def _refused(given, words):
    with pytest.raises(UsageError, match=words):
        range_test.jobs(settled(**given), "demo")


def both_figures(steps):
    """B_match is 4, 5 or 6, because 3 bits are behind and 6 are not; B_learn is 2; and 2 bits are
    more than 0.1 nats behind."""
    widths = (2, 3, 6)
    runs = ("fp32", *(f"{bits} bits" for bits in widths))
    _, found = outcomes_of("range-test", *runs, bits=widths, steps=steps, lr=1e-3)
    gaps = {row["name"]: row["gap"] for row in found.rows}
    shares = {row["name"]: row["learned"] for row in found.rows}
    assert range_test.least_matching({b: gaps[f"{b} bits"] for b in widths}, 0.03) == 6, gaps
    assert range_test.least_learning({b: shares[f"{b} bits"] for b in widths}, 0.5) == 2, shares
    assert gaps["2 bits"] > 0.1


def test_both_figures_where_nano_learns_64_bytes_by_heart(monkeypatch):
    """The gaps are 1.4, 0.33 and 0.003, and 2 bits learn 68 % of what fp32 does."""
    subject = small_subject(sequence=64)
    ids = next(subject.batches(0))
    subject.batches = lambda seed: itertools.repeat(ids)
    monkeypatch.setattr("qtui_core.lab.training.comparison.subject_of", lambda *given: subject)
    both_figures(25)


@pytest.mark.slow
def test_the_range_test_on_nano():
    """The gaps are 0.24, 0.12 and 0.004, and 2 bits learn what fp32 does. After 60 steps those of 2
    to 6 bits are 0.41, 0.25, 0.071, 0.012 and 0.010."""
    with little_held_out():
        both_figures(40)
