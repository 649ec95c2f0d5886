"""The sentence of an evaluation, in each state, from rows of known figures."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from every import every
from test_evaluation_scores import begun_of, part_of, parts_of
from told_truly import faults_of

from qtui_core.evaluation.results import Candidate, EvaluationBegun
from qtui_core.evaluation.summary import summarize

WINDOWS = (10, 10)


def noisy(mean: float, spread: float, seed: int = 0) -> np.ndarray:
    """`[20, 3]`: the means of the windows have this mean and this sample deviation, exactly."""
    x = np.random.default_rng(seed).standard_normal(20)
    return (mean + spread * (x - x.mean()) / x.std(ddof=1))[:, None]


def sizes(begun: EvaluationBegun, *nbytes: int):
    """Changes the bytes of each candidate in parts."""

    def change(parts):
        return [replace(p, nbytes=(2000, *nbytes)[p.candidate]) for p in parts]

    return change


def said(begun, values, nbytes, ended="done") -> str:
    return summarize(begun, sizes(begun, *nbytes)(parts_of(begun, *values)), ended).conclusion


def test_the_best_of_few_bits_is_recommended_with_its_distance() -> None:
    begun = begun_of("int8:row", "nf4", "int4", batches=WINDOWS)
    # In each window int4 is 0.002 worse, give or take 0.001: 0.002 / (0.001 / sqrt 20) = 8.9
    best = noisy(0.005, 0.001)
    values = [1e-4, best, best + noisy(0.002, 0.001, 1)]
    found = said(begun, values, (1010, 560, 560))
    assert found == (
        "Of what takes 5 bits per parameter or fewer, nf4 has the least divergence, 0.005 ± "
        "0.00022 nats a token at 4.48 bits, 8.9 standard errors below int4 (0.007 at 4.48 bits): "
        "take it; with 8.08 bits int8:row comes to 0.0001."
    )


def test_what_may_be_chance_is_called_so() -> None:
    begun = begun_of("nf4", "int4", batches=WINDOWS)
    best = noisy(0.005, 0.001)
    # 0.0002 / (0.001 / sqrt 20) = 0.894 standard errors; 1.1 * 20 * (2.576 / 0.894)^2 = 182.5
    found = said(begun, [best, best + noisy(0.0002, 0.001, 1)], (560, 530))
    assert found == (
        "nf4 and int4 cannot be told apart on 20 windows: they differ by 0.9 standard errors "
        "(0.005 at 4.48 bits and 0.0052 at 4.24 bits): take int4, the smallest, or decide with "
        "about 180 windows."
    )
    alike = said(begun, [best, best], (560, 560))
    assert "have the same divergence of 0.005 nats: take either." in alike


def test_a_smaller_one_that_is_hardly_worse_is_offered() -> None:
    begun = begun_of("nf4", "nf4:dq", "mxfp4", batches=WINDOWS)
    best = noisy(0.005, 0.001)
    found = said(begun, [best, best + 0.0005, best + 0.01], (560, 520, 530))
    assert "over 100 standard errors below nf4:dq (0.0055 at 4.16 bits): take it" in found
    assert "or nf4:dq, with 7% fewer bytes, for 0.0055." in found


def test_one_window_has_no_standard_error_and_so_no_winner() -> None:
    begun = begun_of("nf4", "int4", batches=(1,))
    found = said(begun, [0.005, 0.006], (560, 560))
    assert "one window gives no standard error" in found
    assert found.endswith("read more --windows.")
    short = replace(begun, text=replace(begun.text, available=9))
    assert said(short, [0.005, 0.006], (560, 560)).endswith("read a longer --text.")
    assert "±" not in found


def test_one_candidate_has_a_sentence_of_its_own() -> None:
    begun = begun_of("nf4", batches=WINDOWS)
    parts = [
        part_of(begun, batch, c, 0.005 * c, loss=1.0 + 0.02 * c, nbytes=560, agree=c == 0)
        for batch in (0, 1)
        for c in (0, 1)
    ]
    found = summarize(begun, parts, "done").conclusion
    assert found.startswith("nf4, at 4.48 bits per parameter, is 0.005 ± 0 nats a token from the")
    assert "the loss rises by 0.02 nats, and 0.0% of the most likely tokens stay" in found
    same = said(begun, [0.0], (1000,))
    assert "gives the original's distribution on all of 60 tokens" in same


def test_if_all_are_large_the_best_of_them_is_named() -> None:
    begun = begun_of("int8", "e4m3", batches=WINDOWS)
    found = said(begun, [noisy(1e-4, 1e-5), noisy(5e-4, 1e-5, 1)], (1010, 1000))
    assert found.startswith("int8 has the least divergence")
    one_small = said(begun, [noisy(1e-4, 1e-5), noisy(5e-4, 1e-5, 1)], (1010, 560))
    assert one_small.startswith("e4m3 alone takes 5 bits or fewer")
    assert "with 8.08 bits int8 comes to 0.0001" in one_small


def test_quantized_inputs_come_after_the_weights() -> None:
    begun = begun_of("int8", "int8", batches=WINDOWS)
    names = (*begun.candidates[:2], Candidate("int8", "int8:token"))
    begun = replace(begun, candidates=names)
    best = noisy(1e-4, 1e-5)
    found = said(begun, [best, best + noisy(2e-4, 1e-5, 1)], (1010, 1010))
    assert (
        "With its inputs in int8:token, int8 comes to 0.0003, 89.4 standard errors more." in found
    )
    noise = best + noisy(1e-5, 1e-4, 1)
    found = said(begun, [best, noise], (1010, 1010))
    assert found.endswith("int8 comes to 0.00011, which 20 windows cannot tell from chance.")
    found = said(begun, [best, best], (1010, 1010))
    assert found.endswith("int8 comes to 0.0001, as its weights alone.")
    one = replace(begun_of("int8", "int8", batches=(1,)), candidates=names)
    found = said(one, [1e-4, 5e-2], (1010, 1010))
    assert found.endswith("int8 comes to 0.05, which 1 window cannot tell from chance.")


#: What is unusual -> schemes, the divergences of each, bytes, what is said, what must not be.
STATES = {
    "three alike": (("nf4", "int4", "fp4"), [noisy(0.005, 0.001)] * 3, (560, 560, 560),
                    "nf4, int4 and fp4 have the same divergence of 0.005 nats: take any of them",
                    "either"),
    "two of three are smallest": (("nf4", "fp4", "int4"), [noisy(0.005, 0.001)] * 3,
                                  (560, 560, 570), "take nf4, one of the smallest",
                                  "nf4, the smallest"),
    "one more is broken": (("e5m2", "e4m3"), [np.full((20, 1), math.nan)] * 2,
                           (560, 560), "for 20 of 20 tokens, as 1 more does for some", "more do "),
    "nothing changes": (("int8",), [np.zeros((20, 1))], (1000,),
                        "gives the original's distribution on all of 20 tokens", "nats"),
}  # fmt: skip


def test_the_sentence_of_every_state() -> None:
    def check(schemes, values, nbytes, told, never):
        found = said(begun_of(*schemes, batches=WINDOWS, scored=1), values, nbytes)
        assert told in found
        assert never not in found
        assert not faults_of(found)

    every(STATES, check)


def test_one_window_with_equal_candidates_names_both() -> None:
    begun = begun_of("nf4", "int4", batches=(1,))
    found = summarize(begun, parts_of(begun, 0.005, 0.005), "done").conclusion
    assert "nf4 and int4 have the least divergence" in found


def test_a_broken_original_is_not_put_down_to_its_candidates() -> None:
    begun = begun_of("nf4", "int4", batches=WINDOWS)
    parts = parts_of(begun, *[noisy(0.005, 0.001)] * 2, loss=math.nan)
    broken = [part_of(begun, batch, 0, 0.0, math.nan) for batch in range(2)]
    found = summarize(begun, [*broken, *(p for p in parts if p.candidate)], "done").conclusion
    assert found.startswith("The original itself gives logits that are not finite for 60 of 60")


def test_the_least_is_the_least_of_the_small_ones() -> None:
    def check(seed):
        random = np.random.default_rng(seed)
        schemes = ("nf4", "int4", "int8", "e4m3")[: random.integers(1, 5)]
        begun = begun_of(*schemes, batches=WINDOWS)
        means = random.choice([0.0, 1e-9, 0.0042, 0.005, 0.3], len(schemes))
        spread = random.choice([0.0, 1e-5, 2e-3])
        values = [abs(noisy(mean, spread, at)) for at, mean in enumerate(means)]
        parts = sizes(begun, *random.choice([500, 560, 1010], len(schemes)))
        ended = random.choice(["done", "stopped"])
        result = summarize(begun, parts(parts_of(begun, *values)), ended)
        found, rows = result.conclusion, result.rows[1:]
        assert not faults_of(found), found
        if named := re.search(r"(\S+) has the least divergence", found):
            small = [row for row in rows if row.bits_per_parameter <= 5] or rows
            assert named[1] == min(small, key=lambda row: row.kl_mean).name
        if "the same divergence" in found:
            assert len({row.kl_mean for row in rows}) < len(rows)

    every(range(60), check)


def test_advice_about_what_is_not_finite_can_be_followed() -> None:
    begun = begun_of("e4m3", "nf4", batches=WINDOWS)
    found = said(begun, [np.full((20, 3), math.nan), noisy(0.005, 0.001)], (1000, 560))
    assert "its weights overflow or are not finite, so do not take it. nf4, at 4.48" in found


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_not_finite_comes_first(whole: bool) -> None:
    begun = begun_of("e5m2", "nf4", batches=WINDOWS)
    values = np.full((20, 3), math.nan)
    found = said(begun, [values, values if whole else noisy(0.005, 0.001)], (1000, 560))
    assert found.startswith("e5m2 gives logits that are not finite for 60 of 60 tokens")
    assert ("as 1 more does" in found) == whole
    assert ("nf4, at 4.48 bits" in found) != whole


def test_an_evaluation_that_was_stopped_says_so_first() -> None:
    begun = begun_of("nf4", "int4", batches=WINDOWS)
    best = noisy(0.005, 0.001)
    parts = parts_of(begun, best, best + noisy(0.002, 0.001, 1))
    for count, start in (
        (0, "Stopped before the first candidate"),
        (1, "Stopped before the first candidate"),
        (2, "Stopped after 1 of 2 candidates had read 10 of 20 windows. nf4, at 4.00 bits"),
        (4, "Stopped after 10 of 20 windows. Of what takes 5 bits"),
    ):
        found = summarize(begun, parts[:count], "stopped").conclusion
        assert found.startswith(start), count
        assert found.endswith(".")
    assert "--resume" in summarize(begun, [], "stopped").conclusion
    assert summarize(begun, []).conclusion == "No candidate has read the text yet."
