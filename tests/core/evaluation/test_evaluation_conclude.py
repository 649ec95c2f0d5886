"""The sentence of an evaluation, in each state, from rows of known figures."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from test_evaluation_scores import begun_of, part_of, parts_of
from told_truly import faults_of

from qtui_core.evaluation.results import EvaluationBegun
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


BEST = noisy(0.005, 0.001)
NAN = np.full((20, 3), math.nan)
#: What is special -> schemes, the divergences of each, bytes, what is said, what must not be.
STATES = {
    # In each window int4 is 0.002 worse, give or take 0.001: 0.002 / (0.001 / sqrt 20) = 8.9
    "the best of few bits": (
        ("int8:row", "nf4", "int4"), [1e-4, BEST, BEST + noisy(0.002, 0.001, 1)], (1010, 560, 560),
        "Of what takes 5 bits per parameter or fewer, nf4 has the least divergence, 0.005 ± "
        "0.00022 nats a token at 4.48 bits, 8.9 standard errors below int4 (0.007 at 4.48 bits): "
        "take it.", "int8"),
    # 0.0002 / (0.001 / sqrt 20) = 0.894 standard errors
    "chance": (
        ("nf4", "int4"), [BEST, BEST + noisy(0.0002, 0.001, 1)], (560, 530),
        "nf4 and int4 cannot be told apart on 20 windows: they differ by 0.9 standard errors "
        "(0.005 at 4.48 bits and 0.0052 at 4.24 bits): take int4, the smallest.", "longer"),
    "two alike": (("nf4", "int4"), [BEST, BEST], (560, 560),
                  "have the same divergence of 0.005 nats: take either.", "smallest"),
    "three alike": (("nf4", "int4", "fp4"), [BEST] * 3, (560, 560, 560),
                    "nf4, int4 and fp4 have the same divergence of 0.005 nats: take any of them",
                    "either"),
    "two of three are smallest": (("nf4", "fp4", "int4"), [BEST] * 3, (560, 560, 570),
                                  "take nf4, one of the smallest", "nf4, the smallest"),
    "all are large": (("int8", "e4m3"), [1e-4, 5e-4], (1010, 1000),
                      "int8 has the least divergence", "or fewer"),
    "one is small": (("int8", "e4m3"), [1e-4, 5e-4], (1010, 560),
                     "e4m3 alone takes 5 bits per parameter or fewer", "int8"),
    "one candidate": (("nf4",), [0.005], (560,), "nf4, at 4.48 bits per parameter, is 0.005 ± 0 "
                      "nats a token from the original, and ", "least"),
    "nothing changes": (("int8",), [np.zeros((20, 1))], (1000,),
                        "gives the original's distribution on all of 60 tokens", "nats"),
    "one is broken": (("e4m3", "nf4"), [NAN, BEST], (1000, 560), "e4m3 gives logits that are not "
                      "finite for 60 of 60 tokens: do not take it. nf4, at 4.48", "does"),
    "both are broken": (("e5m2", "e4m3"), [NAN, NAN], (560, 560),
                        "for 60 of 60 tokens, and 1 other does so for some", "others"),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_the_sentence_of_every_state(state) -> None:
    schemes, values, nbytes, words, never = STATES[state]
    found = said(begun_of(*schemes, batches=WINDOWS), values, nbytes)
    assert words in found
    assert never not in found
    assert not faults_of(found)


def test_one_window_has_no_standard_error_and_so_no_winner() -> None:
    begun = begun_of("nf4", "int4", batches=(1,))
    found = said(begun, [0.005, 0.006], (560, 560))
    assert found.endswith("one window gives no standard error: read more --windows.")
    short = replace(begun, text=replace(begun.text, available=9))
    assert said(short, [0.005, 0.006], (560, 560)).endswith("read a longer --text.")
    assert "nf4 and int4 have the least divergence" in said(begun, [0.005, 0.005], (560, 560))


def test_a_broken_original_is_not_put_down_to_its_candidates() -> None:
    begun = begun_of("nf4", "int4", batches=WINDOWS)
    parts = parts_of(begun, *[BEST] * 2, loss=math.nan)
    broken = [part_of(begun, batch, 0, 0.0, math.nan) for batch in range(2)]
    found = summarize(begun, [*broken, *(p for p in parts if p.candidate)], "done").conclusion
    assert found.startswith("The original itself gives logits that are not finite for 60 of 60")


def test_the_least_is_the_least_of_the_small_ones() -> None:
    for seed in range(60):
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
