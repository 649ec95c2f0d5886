"""The sentence of the Codebooks panel, compared with the measured numbers."""

import math
import re

import numpy as np
import pytest
from every import every
from shorthands import code_occupancy
from told_truly import faults_of

from qtui_core.quant import Scheme, bits_per_parameter, measure, statistics
from qtui_core.quant.contest import REMEDY, UNEQUAL, Contender, verdict
from qtui_core.quant.granularities import at_equal_bits

#: Rows whose length is a multiple of 64 and of 72.
SHAPE = (128, 576)
FIRST = ["nf4", "int4", "int4:group64:asym", "fp4", "e2m1"]


def tensor(kind):
    random = np.random.default_rng(1)
    return {
        "normal": random.standard_normal(SHAPE),
        "uniform": random.uniform(-1, 1, SHAPE),
        "laplace": random.laplace(size=SHAPE),
        "one-sided": np.abs(random.standard_normal(SHAPE)),
        "constant": np.full(SHAPE, 0.3),
        "zeros": np.zeros(SHAPE),
    }[kind].astype(np.float32)


def judged(x, texts, *, resized=False):
    """The contenders and the sentence."""
    schemes = [Scheme.parse(text) for text in texts]
    if resized:
        wanted = bits_per_parameter(schemes[0], x.shape)
        schemes = [row.scheme for row in at_equal_bits(schemes, x.shape, wanted)]
    contenders = [Contender(measure(x, s), code_occupancy(x, s)) for s in schemes]
    return contenders, verdict(contenders, statistics(x), resized=resized)


def best_of(contenders, name):
    return max(c.db for c in contenders if c.report.scheme.format == name)


@pytest.mark.parametrize("first", ["nf4", "nf4:block64:dq"])
@pytest.mark.parametrize("kind", ["normal", "uniform", "laplace", "one-sided"])
def test_the_winner_at_equal_bits_is_the_one_with_most_decibels(kind, first):
    contenders, sentence = judged(tensor(kind), [first, *FIRST[1:]], resized=True)
    bits = [c.bits for c in contenders]
    assert max(bits) - min(bits) < 0.04
    best, second = sorted(contenders, key=lambda c: -c.db)[:2]
    assert f"({best.bits:.3f})" in sentence
    assert best.name in sentence
    assert f"wins by {best.db - second.db:.1f} dB" in sentence or "are level" in sentence
    lead = best_of(contenders, "int4") - best_of(contenders, "nf4")
    assert (f"by {abs(lead):.1f} dB: " in sentence) == (abs(lead) >= 0.1)


def test_when_int4_wins_the_reason_is_in_the_data():
    x = tensor("uniform")
    _, uniform = judged(x, FIRST, resized=True)
    blocks = np.abs(x.reshape(-1, 64))
    outer = (blocks > blocks.max(axis=1, keepdims=True) / 2).mean()
    assert f"{outer:.0%} of its values lie in the outer half of their block (of a G" in uniform
    _, shifted = judged(tensor("one-sided"), FIRST, resized=True)
    assert "mean is 1.3 standard deviations from zero, and only a zero point" in shifted
    for sentence in (uniform, shifted):
        assert re.search(r" int4:\S+ beats nf4", sentence)


def test_why_nf4_wins():
    x = tensor("laplace")
    _, sentence = judged(x, ["nf4", "int4"])
    blocks = np.abs(x.reshape(-1, 64))
    outer = (blocks > blocks.max(axis=1, keepdims=True) / 2).mean()
    assert f"only {outer:.0%} of its values" in sentence
    _, normal = judged(tensor("normal"), ["nf4", "int4"])
    assert "spread as normal ones" in normal


def test_other_bits_are_not_compared():
    contenders, sentence = judged(tensor("normal"), FIRST)
    assert "At equal bits (4.500) nf4:block64 wins" in sentence
    odd = contenders[2]
    assert f"{odd.name} takes {odd.bits:.3f} bits" in sentence
    assert sentence.endswith("= makes bits equal.")
    _, sentence = judged(tensor("normal"), ["nf4:block64:dq", "int4", "mxfp4"])
    assert sentence.startswith("These are not equal bits (4.128 to 4.500): ")
    assert "= makes bits equal" in sentence


def test_tensors_without_a_contest():
    assert judged(tensor("zeros"), FIRST)[1].startswith("Every element is zero")
    assert "keep every element of this tensor exactly" in judged(tensor("constant"), FIRST)[1]
    assert "NaN or infinite" in judged(np.full(SHAPE, np.nan, np.float32), FIRST)[1]
    assert "no elements" in judged(np.empty((0, 8), np.float32), ["nf4"])[1]
    assert "No scheme is chosen" in verdict([])
    alone = judged(tensor("normal"), ["nf4"])
    assert f"{alone[0][0].db:.1f} dB at 4.500 bits" in alone[1]
    assert "add another scheme" in alone[1]
    kept = judged(tensor("normal"), ["int8:row:outliers0.5"])
    assert "keeps every column in 16 bits, so there are no codes to count" in kept[1]


#: The tensor and the schemes -> what is said, and what must not be.
TOLD = {
    "a column of one element": (
        "one row", ["e4m3:column"], "to the rounding of float32", "exactly"),
    "level at unequal bits": (
        "normal", ["nf4:block64:dq", "nf4"], "are level, 20.7 dB; ", "leads by"),
    "casts cannot be resized": ("normal", ["mxfp4", "e4m3"], UNEQUAL, REMEDY),
    "one of two can be resized": (
        "normal", ["nf4", "int4", "int4:group128", "e4m3"], f"{REMEDY} for 1 of them", UNEQUAL),
}  # fmt: skip


def test_the_sentence_of_every_state():
    def check(kind, texts, said, never):
        x = tensor("normal")[:1] if kind == "one row" else tensor(kind)
        _, found = judged(x, texts)
        assert said in found
        assert never not in found
        assert not faults_of(found)

    every(TOLD, check)


@pytest.mark.parametrize("resized", [False, True])
def test_what_is_best_has_the_most_decibels_and_exact_is_exact(awkward, resized):
    """Whatever is compared on whatever tensor."""
    choices = (["nf4", "int4"], FIRST, ["int8:row", "int4", "e4m3"], ["e4m3:column", "mxfp8-e5m2"])

    def check(name, texts):
        with np.errstate(over="ignore"):
            x = np.asarray(awkward[name]).astype(np.float32)
        contenders, found = judged(x, texts, resized=resized and x.size > 0)
        assert not faults_of(found), found
        named = re.search(r"(?<!Gaussian )(?<!\S)(\S+) (?:wins by|leads by)", found)
        if named:
            best = next(c for c in contenders if c.name == named[1])
            rivals = (
                contenders
                if "leads by" in found
                else [c for c in contenders if abs(c.bits - contenders[0].bits) <= 0.02]
            )
            assert best.db == max(c.db for c in rivals)
        exact = re.search(r"(.*) keeps? every element of this tensor exactly", found)
        if exact:
            names = re.split(", | and ", exact[1].rpartition(": ")[2])
            assert {c.db for c in contenders if c.name in names} == {math.inf}

    every([(name, texts) for name in awkward for texts in choices], check)


def test_values_too_small_for_a_scale_are_the_reason():
    x = np.random.default_rng(3).standard_normal((64, 256))
    _, sentence = judged((x * 1e-38).astype(np.float32), ["nf4", "int4:group64"])
    assert "too small for the scales of int4:group64" in sentence
    _, sentence = judged((x * 1e-41).astype(np.float32), ["nf4", "int4:group64"])
    assert sentence.startswith("Nothing of this tensor is left")
    assert "Multiply it" in sentence
