"""What holds an assignment against its model: the rivals that it gets, and the sentence in each
state, from parts of known figures."""

import math
from dataclasses import replace

import numpy as np
import pytest
from every import every, over
from packed_models import save_model
from test_evaluation_conclude import noisy, sizes
from test_evaluation_scores import begun_of, part_of, parts_of

from qtui_core.codec import printed
from qtui_core.evaluation.conclude import beyond_chance
from qtui_core.evaluation.sensitivity.assign import assign_schemes, weigh
from qtui_core.evaluation.sensitivity.judgement import THE_ASSIGNMENT, judge, nearest, rivals_of
from qtui_core.evaluation.sensitivity.report import FrontierPoint, UniformPoint
from qtui_core.inspection.inspect import inspect_model
from qtui_core.models import open_model
from qtui_core.schemes.scheme import Scheme

RULE = "nf4:dq with lm_head in int8"
KINDS = {THE_ASSIGNMENT: "assignment", RULE: "rule", "nf4": "uniform", "int8": "uniform"}
BEST = noisy(0.005, 0.001)
#: In every window the same distance, give or take the given one: their quotient over sqrt 20 is the
#: number of standard errors.
WORSE, BETTER = BEST + noisy(0.002, 0.001, 1), BEST - noisy(0.002, 0.001, 1)
ALIKE = BEST + noisy(0.0002, 0.001, 1)
BYTES = (560, 530, 550, 1010)


def judged(values, nbytes=BYTES, batches=(10, 10)):
    begun = begun_of(*KINDS, batches=batches)
    return judge(begun, sizes(begun, *nbytes)(parts_of(begun, *values)), KINDS, "done")


EIGHT = BEST / 50
HELD = "On 20 held-out windows the assignment"
#: (divergences of each, other bytes or batches, what is advised, the sentence).
STATES = {
    "the best": (
        [BEST, WORSE, WORSE + 0.001, EIGHT], {}, THE_ASSIGNMENT,
        f"{HELD} is the best of its bytes: 0.005 ± 0.00022 nats a token at 4.48 bits, 8.9 standard "
        f"errors below the rule {RULE} (0.007 at 4.24 bits), the next: take it."),
    "worse": (
        [BEST, BETTER, WORSE, EIGHT], {}, RULE,
        f"{HELD} is worse than the rule {RULE}, which takes fewer bytes, by 8.9 standard errors "
        f"(KL 0.005 at 4.48 bits against 0.003 at 4.24 bits): take the rule {RULE}, not the "
        "assignment."),
    "chance": (
        [BEST, ALIKE, WORSE, EIGHT], {}, RULE,
        f"{HELD} and the rule {RULE} cannot be told apart (KL 0.005 at 4.48 bits and 0.0052 at "
        "4.24 bits, 0.9 standard errors, where 2.9 count), so the assignment gains nothing that "
        f"this text shows: take the rule {RULE}, which is simpler."),
    "no rival": (
        [BEST, BETTER, WORSE, EIGHT], {"nbytes": (500, 530, 550, 1010)}, THE_ASSIGNMENT,
        f"{HELD} is 0.005 ± 0.00022 nats a token at 4.00 bits, and nothing to compare it with "
        "takes as few bytes: take it if there is no room for more."),
    "not finite": (
        [math.nan, WORSE, BEST, EIGHT], {}, "nf4",
        "The assignment gives logits that are not finite for 60 of the tokens: take nf4 instead, "
        "0.005 ± 0.00022 nats a token at 4.40 bits."),
    "none is finite": (
        [math.nan, math.inf, math.nan, EIGHT], {}, "",
        "The assignment gives logits that are not finite for 60 of the tokens: name schemes that "
        "reach further, as nothing else in its bytes gives finite ones."),
    "one window": (
        [0.002, 0.001, 0.003, 1e-4], {"batches": (1,)}, "",
        "One held-out window gives no standard error, so nothing is decided: the assignment has a "
        f"KL of 0.002 at 4.48 bits, the rule {RULE} 0.001 at 4.24 bits; give a longer text."),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_the_sentence_in_every_state(state) -> None:
    values, how, recommended, said = STATES[state]
    found = judged(values, **how)
    assert (found.conclusion, found.recommended) == (said, recommended)
    assert found.other == (recommended if recommended != THE_ASSIGNMENT else "")


def test_a_rival_that_is_not_finite_is_left_out_of_the_comparison() -> None:
    found = judged([BEST, math.nan, WORSE, 1e-4])
    assert found.recommended == THE_ASSIGNMENT
    assert "below nf4 (0.007" in found.conclusion
    assert [row.difference is None for row in found.rows] == [True, True, False, False]


def test_an_original_that_is_broken_is_not_held_against_the_assignment() -> None:
    begun = begun_of(*KINDS, batches=(10, 10))
    parts = sizes(begun, *BYTES)(parts_of(begun, BEST, WORSE, WORSE, 1e-4, loss=math.inf))
    parts[0] = part_of(begun, 0, 0, 0.0, loss=math.inf, nbytes=2000)
    found = judge(begun, parts, KINDS)
    assert found.conclusion.startswith("The original itself gives logits that are not finite for 3")
    assert found.recommended == ""


def test_a_judgement_that_was_stopped_says_what_it_has_read() -> None:
    begun = begun_of(*KINDS, batches=(10, 10))
    parts = sizes(begun, *BYTES)(parts_of(begun, BEST, WORSE, WORSE, 1e-4))
    half, nothing = (judge(begun, parts[:count], KINDS, "stopped") for count in (7, 3))
    assert half.windows == 10
    assert half.conclusion.startswith("Stopped after 10 of 20 windows. On 10 held-out windows the ")
    assert (nothing.rows, nothing.recommended, nothing.other) == ((), "", "")
    assert nothing.conclusion.startswith("Stopped before every candidate had read a window")
    assert printed(nothing)["assignment"] is None


def test_differences_are_paired_over_windows() -> None:
    """Against the definition, on windows that are hard for all candidates alike: two candidates
    whose means overlap are apart by many standard errors of their difference."""
    rng = np.random.default_rng(5)
    hard = rng.exponential(0.01, (20, 1))
    own, other = hard * np.ones((20, 3)), hard * 1.02 + rng.normal(0, 1e-6, (20, 3))
    found = judged([own, other, other + 1, 1e-4])
    row = found.rows[1]
    differences = (other - own).mean(axis=1)
    mean, stderr = differences.mean(), differences.std(ddof=1) / 20**0.5
    told = (row.difference.difference, row.difference.stderr, row.difference.errors)
    assert told == pytest.approx((mean, stderr, mean / stderr), rel=1e-4)
    # Unpaired, chance could not be excluded.
    assert mean < found.rows[0].row.kl_stderr
    assert row.difference.errors > found.limit == beyond_chance(20)
    plain = printed(found)
    assert plain["rows"][1]["kl_difference"] == row.difference.difference
    assert plain["rows"][1]["kl_difference_stderr"] == row.difference.stderr
    assert plain["assignment"] == plain["rows"][0]
    assert plain["rows"][0]["kl_difference"] is None


def test_the_advice_is_never_beaten_in_its_bytes() -> None:
    """Whatever the figures are: nothing that takes no more bytes than the assignment is better than
    the advice beyond chance, and what is advised instead of the assignment is better or simpler."""
    rng = np.random.default_rng(6)
    seen = set()
    for _ in range(120):
        hard = rng.exponential(0.01, (20, 1))
        values = [
            hard * rng.uniform(0.9, 1.1) + rng.normal(0, 10.0 ** rng.uniform(-6, -3), (20, 1))
            for _ in KINDS
        ]
        nbytes = rng.integers(500, 600, 4).tolist()
        found = judged([np.abs(v) for v in values], nbytes)
        means = {name: np.abs(v)[:, 0] for name, v in zip(KINDS, values, strict=True)}
        own, advice = THE_ASSIGNMENT, found.recommended

        def errors(a: str, b: str, means=means) -> float:
            """Standard errors by which a is better than b."""
            d = means[b] - means[a]
            return float(d.mean() / (d.std(ddof=1) / 20**0.5))

        fitting = [n for n, size in zip(KINDS, nbytes, strict=True) if size <= nbytes[0]]
        assert advice in fitting
        limit = beyond_chance(20)
        better = [n for n in fitting if n != own and errors(n, own) > limit]
        if better:
            assert advice in better
            assert "worse than" in found.conclusion
        else:
            assert not any(errors(n, advice) > limit for n in fitting if n != advice)
        assert (advice == own) == (
            "take it" in found.conclusion and "cannot be told" not in found.conclusion
        )
        seen.add(" ".join(found.conclusion.split()[4:9]))
    assert len(seen) >= 3


def point(nbytes: int, error: float) -> FrontierPoint:
    return FrontierPoint(nbytes, nbytes / 100, error, None)


def test_the_nearest_single_schemes_are_taken() -> None:
    sizes_ = {"a": (100, 5), "b": (200, 4), "c": (300, 3), "d": (300, 2), "e": (400, 1),
              "f": (500, 0.5), "g": (600, 0.1)}  # fmt: skip
    points = [UniformPoint(n, point(*p)) for n, p in sizes_.items()]

    def check(nbytes: int, expected: str) -> None:
        assert "".join(each.scheme for each in nearest(points, nbytes)) == expected

    every(((99, "a"), (100, "ab"), (450, "bdef"), (500, "defg"), (10**6, "efg")), check)


EMBEDDING, UP, HEAD = "model.embed_tokens.weight", "m.up.weight", "lm_head.weight"
STORED = {EMBEDDING: (64, 64), UP: (64, 64), HEAD: (64, 64), "norm.weight": (64,)}
GPT = {"wte.weight": (96, 64), "wpe.weight": (32, 64), "h.0.c.weight": (64, 64)}
EMBEDDED = "nf4:dq with embed_tokens in int8"
#: (config, shapes, chosen tensors, the heads, the name of the rule, what is said of it).
RULES = [
    ({}, STORED, None, [HEAD], RULE, f"int8 for {HEAD}"),
    ({"tie_word_embeddings": True}, STORED, None, [EMBEDDING, HEAD], EMBEDDED,
     "which is the head too (tied)"),
    ({}, {n: s for n, s in STORED.items() if n != HEAD}, None, [EMBEDDING], EMBEDDED, "(tied)"),
    ({}, GPT, None, ["wte.weight"], "nf4:dq with wte in int8", "wte.weight, which"),
    ({}, STORED, "m.*", [], "", "the head, is not among the chosen tensors"),
    ({}, {UP: (64, 64)}, None, [], "", "no tensor is known as the head"),
]  # fmt: skip


@over(("config", "shapes", "pattern", "heads", "name", "words"), RULES)
def test_the_rule_means_the_head_of_the_model(
    tmp_path, config, shapes, pattern, heads, name, words
) -> None:
    rng = np.random.default_rng(7)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    source = open_model(str(save_model(tmp_path / "m", arrays, model_type="llama", **config)))
    nf4, int8, int4 = (Scheme.parse(text) for text in ("nf4:dq", "int8", "int4"))
    weighing = weigh(inspect_model(source, [nf4, int8, int4], full=True, pattern=pattern))
    found = assign_schemes(weighing, 10**6)
    rivals = rivals_of(source, replace(found, point=replace(found.point, nbytes=9000)))
    assert words in rivals.rule
    names = [each.name for each in rivals.given]
    assert list(rivals.kinds) == names
    assert names[0] == THE_ASSIGNMENT
    assert all(set(g.schemes) == {c.name for c in found.choices} for g in rivals.given)
    rules = [each for each in rivals.given if rivals.kinds[each.name] == "rule"]
    assert [each.name for each in rules] == ([name] if name else [])
    for rule in rules:
        assert {n for n, s in rule.schemes.items() if s == int8} == set(heads)
        assert set(rule.schemes.values()) == {nf4, int8}
