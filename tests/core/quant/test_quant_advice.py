"""Advice never names a scheme that takes as many bits as the stored values."""

from __future__ import annotations

import re

import numpy as np
import pytest
from every import in_parts
from shorthands import code_occupancy

from qtui_core.errors import UsageError
from qtui_core.models import open_model
from qtui_core.models.files.arrays import read_float32
from qtui_core.quant import Scheme, bits_per_parameter, explain, find_outliers, measure, statistics
from qtui_core.quant.contest import Contender, verdict

SCHEMES = [
    Scheme.parse(text)
    for text in (
        "nf4", "nf4:dq", "int4", "int4:asym", "int4:tensor", "int8", "int8:tensor", "int2:row",
        "e4m3", "e4m3:tensor", "mxfp4", "nvfp4", "fp16", "bf16:stochastic", "ternary",
        "int8:row:outliers6.0",
    )
]  # fmt: skip
SHAPES = ((1, 1), (1, 7), (64, 1), (1, 256), (3, 5), (40, 96))


def filled(shape: tuple[int, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape)
    spiked = x.copy()
    spiked[:, 0] *= 60
    broken = x.copy()
    broken[0, -1] = np.nan
    made = {
        "normal": x,
        "constant": np.full(shape, 0.3),
        "zeros": np.zeros(shape),
        "broken": broken,
        "tiny": x * 1e-41,
        "small": x * 1e-7,
        "huge": x * 1e6,
        "spiked": spiked,
        "heavy": np.exp(3 * x),
        "off centre": x + 7,
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


def named(sentence: str, subject: Scheme) -> set[Scheme]:
    """The schemes that a sentence names, except `subject` and its format."""
    found = set()
    sentence = sentence.replace("fp16, in which outlier columns are kept,", "")
    for word in re.findall(r"[a-z][a-z0-9-]*\d(?::[a-z0-9.]+)*|ternary[:a-z]*", sentence):
        if word.rstrip(".:") == subject.format:
            continue
        try:
            found.add(Scheme.parse(word.rstrip(".:")))
        except UsageError:
            continue
    return found - {subject}


def costly(x: np.ndarray, own: Scheme, sentence: str, stored: float) -> set[str]:
    """The schemes that a sentence names besides `own` and that take `stored` bits or more, and the
    bits that it mentions."""
    wrong = {
        str(scheme)
        for scheme in named(sentence, own)
        if bits_per_parameter(scheme, x.shape) >= stored
    }
    offered = re.findall(r"at (?:the same )?([\d.]+) bits(?! it saves)", sentence)
    return wrong | {bits for bits in offered if float(bits) >= stored}


def failures(x: np.ndarray, where: str, widths: tuple[float, ...]) -> list[str]:
    reports = [measure(x, scheme) for scheme in SCHEMES]
    stats = statistics(x)
    outliers = find_outliers(x, stats)
    found = []
    for at, report in enumerate(reports):
        rest = [*reports[:at], *reports[at + 1 :]]
        for stored in widths:
            for others in ([], rest):
                said = explain([report, *others], stats, outliers, stored_bits=stored)
                if wrong := costly(x, report.scheme, said, stored):
                    found.append(f"{where}, {stored:g} bits stored: {wrong} in: {said}")
    return found


@in_parts(3)
def test_no_remedy_takes_as_many_bits_as_what_is_stored(parts):
    found = []
    for at, shape in enumerate(SHAPES):
        for name, x in list(filled(shape).items())[at % parts :: parts]:
            found += failures(x, f"{name} {shape}", (8.0, 16.0))
    assert found == []


@pytest.mark.slow
def test_no_remedy_takes_as_many_bits_as_what_the_demo_stores():
    found = []
    with open_model("demo") as source:
        for name, info in source.tensors.items():
            x = read_float32(source, name).reshape(info.matrix)
            found += failures(x, name, (8 * info.nbytes / info.elements,))
    assert found == []


def test_no_scheme_that_saves_nothing_wins_among_codebooks():
    found = []
    for shape in SHAPES:
        for name, x in filled(shape).items():
            if name in ("zeros", "broken"):
                continue
            schemes = [Scheme.parse(t) for t in ("nf4", "int4:group32", "nf4:block32:dq", "nvfp4")]
            contenders = [Contender(measure(x, s), code_occupancy(x, s)) for s in schemes]
            for stored in (4.3, 8.0, 16.0):
                said = verdict(contenders, statistics(x), stored_bits=stored)
                costs = [c.bits for c in contenders if c.bits >= stored]
                if len(costs) == len(contenders):
                    if "leave this tensor as it is" not in said:
                        found.append(f"{name} {shape} {stored}: {said}")
                    continue
                told, _, rest = said.rpartition("Of the rest: ")
                counted = not costs or told.startswith(f"{len(costs)} scheme")
                if not counted or costly(x, schemes[0], rest, stored):
                    found.append(f"{name} {shape} {stored}: {said}")
    assert found == []
