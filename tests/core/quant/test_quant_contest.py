"""The sentence about codebooks beside each other, compared with the measured numbers."""

import math
import re

import numpy as np
from every import every, over
from shorthands import code_occupancy
from told_truly import faults_of

from qtui_core.quant import Scheme, bits_per_parameter, measure, statistics
from qtui_core.quant.contest import REMEDY, UNEQUAL, Contender, verdict
from qtui_core.quant.granularities import at_equal_bits

#: Rows whose length is a multiple of 64 and of 72.
SHAPE = (128, 576)
FIRST = ["nf4", "int4", "int4:group64:asym", "fp4", "e2m1"]


def tensor(kind, shape=SHAPE):
    random = np.random.default_rng(1)
    return {
        "normal": random.standard_normal(shape),
        "uniform": random.uniform(-1, 1, shape),
        "laplace": random.laplace(size=shape),
        "one-sided": np.abs(random.standard_normal(shape)),
        "one row": random.standard_normal((1, 576)),
        "constant": np.full(shape, 0.3),
        "zeros": np.zeros(shape),
        "nan": np.full(shape, np.nan),
        "empty": np.empty((0, 8)),
        "tiny": random.standard_normal(shape) * 1e-38,
        "denormal": random.standard_normal(shape) * 1e-41,
    }[kind].astype(np.float32)


def judged(x, texts, *, resized=False, **how):
    """The contenders and the sentence."""
    schemes = [Scheme.parse(text) for text in texts]
    if resized:
        wanted = bits_per_parameter(schemes[0], x.shape)
        schemes = [row.scheme for row in at_equal_bits(schemes, x.shape, wanted)]
    contenders = [Contender(measure(x, s), code_occupancy(x, s)) for s in schemes]
    return contenders, verdict(contenders, statistics(x), resized=resized, **how)


@over("first", ["nf4", "nf4:block64:dq"])
@over("kind", ["normal", "uniform", "laplace", "one-sided"])
def test_the_winner_at_equal_bits_is_the_one_with_most_decibels(kind, first):
    contenders, sentence = judged(tensor(kind), [first, *FIRST[1:]], resized=True)
    bits = [c.bits for c in contenders]
    assert max(bits) - min(bits) < 0.04
    best, second = sorted(contenders, key=lambda c: -c.db)[:2]
    assert f"({best.bits:.3f})" in sentence
    assert best.name in sentence
    assert f"wins by {best.db - second.db:.1f} dB" in sentence or "are level" in sentence
    integer, normal = (
        max(c.db for c in contenders if c.report.scheme.format == name) for name in ("int4", "nf4")
    )
    lead = abs(integer - normal)
    assert (f"by {lead:.1f} dB: " in sentence) == (lead >= 0.1)


@over(
    ("kind", "texts", "said"), [("uniform", FIRST, "{:.0%}"), ("laplace", FIRST[:2], "only {:.0%}")]
)
def test_the_share_in_the_outer_half_is_counted(kind, texts, said):
    x = tensor(kind)
    blocks = np.abs(x.reshape(-1, 64))
    outer = (blocks > blocks.max(axis=1, keepdims=True) / 2).mean()
    assert f"{said.format(outer)} of its values" in judged(x, texts, resized=len(texts) > 2)[1]


#: (tensor, schemes, what is said, what is not).
STATES = [
    ("zeros", FIRST, "Every element is zero", ""),
    ("constant", FIRST, "keep every element of this tensor exactly", ""),
    ("nan", FIRST, "NaN or infinite", ""),
    ("empty", ["nf4"], "no elements", ""),
    ("normal", ["nf4"], "dB at 4.500 bits|add another scheme", ""),
    ("normal", ["int8:row:outliers0.5"],
     "keeps every column in 16 bits, so there are no codes to count", ""),
    ("one row", ["e4m3:column"], "to the rounding of float32", "exactly"),
    ("tiny", ["nf4", "int4:group64"], "too small for the scales of int4:group64", ""),
    ("denormal", ["nf4", "int4:group64"], "Nothing of this tensor is left|Multiply it", ""),
    # Reasons.
    ("normal", FIRST[:2], "spread as normal ones", ""),
    ("one-sided", FIRST, "deviations from zero, and only a zero point", ""),
    # Other bits.
    ("normal", FIRST, "At equal bits (4.500) nf4:block64 wins|int4:group64:asym takes 4.562 bits"
     f"|{REMEDY}.", ""),
    ("normal", ["nf4:dq", "int4", "mxfp4"], f"not equal bits (4.128 to 4.500): |{REMEDY}", ""),
    ("normal", ["nf4:dq", "nf4"], "are level, 20.7 dB; ", "leads by"),
    ("normal", ["mxfp4", "e4m3"], UNEQUAL, REMEDY),
    ("normal", ["nf4", "int4", "int4:group128", "e4m3"], f"{REMEDY} for 1 of them", UNEQUAL),
]  # fmt: skip


def test_the_sentence_of_every_state():
    assert "No scheme is chosen" in verdict([])

    def check(kind, texts, said, never):
        _, found = judged(tensor(kind), texts, resized=kind == "one-sided")
        assert all(part in found for part in said.split("|")), found
        assert not never or never not in found
        assert not faults_of(found)

    every(STATES, check)


@over("resized", [False, True])
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
            rivals = contenders
            if "leads by" not in found:
                rivals = [c for c in contenders if abs(c.bits - contenders[0].bits) <= 0.02]
            assert max(rivals, key=lambda c: c.db).name == named[1]
        exact = re.search(r"(.*) keeps? every element of this tensor exactly", found)
        if exact:
            names = re.split(", | and ", exact[1].rpartition(": ")[2])
            assert {c.db for c in contenders if c.name in names} == {math.inf}

    every([(name, choices[at % 4]) for at, name in enumerate(awkward)], check)
    every([(name, choices[at % 3]) for at, name in enumerate(awkward)], check)


@over("kind", ["normal", "constant", "tiny", "uniform", "one-sided"])
@over("shape", [(1, 1), (1, 256), (40, 96)])
@over("stored", [4.3, 8.0, 16.0])
def test_no_scheme_that_saves_nothing_wins(kind, shape, stored):
    texts = ["nf4", "int4:group32", "nf4:block32:dq", "nvfp4"]
    contenders, said = judged(tensor(kind, shape), texts, stored_bits=stored)
    costly = [c for c in contenders if c.bits >= stored]
    if len(costly) == len(contenders):
        assert "leave this tensor as it is" in said
        return
    told, _, rest = said.rpartition("Of the rest: ")
    assert not costly or told.startswith(f"{len(costly)} scheme")
    for bits in re.findall(r"at (?:the same )?([\d.]+) bits(?! it saves)", rest):
        assert float(bits) < stored
    assert not any(re.search(rf"(?<!\S){c.name}(?!\S)", rest) for c in costly)
