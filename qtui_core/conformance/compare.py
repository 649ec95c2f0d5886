"""Compares two results for the same tensor, down to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.conformance.convention import (
    Convention,
    Outcome,
    Verdict,
    described,
)
from qtui_core.dataclass import dataclass

Array = npt.NDArray[Any]


class Refused(Exception):
    """The library refuses what qtui accepts. This is a difference, not a failure."""


@dataclass(frozen=True)
class Side:
    """What one library made of a tensor.

    Attributes:
        codes: of any integer type, one per element or packed, as both sides store them.
        values: float32 or float64, what the codes decode to.
        scales: scales, zero points and whatever else is stored, by name; compared as bytes.
    """

    codes: Array
    values: Array
    scales: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class ConformanceSample:
    """The tensor `x` through both libraries. `name` says what is special about it."""

    name: str
    x: Array
    ours: Side
    theirs: Side


def outcome_of(
    convention: Convention, check: Callable[[Convention], Iterable[ConformanceSample]]
) -> Outcome:
    """What the check of a convention gives, also if the library refuses or raises."""
    try:
        return judge(convention.id, check(convention))
    except Refused as error:
        return Outcome(convention.id, Verdict.DIFFERS, example=f"Refused: {error}")
    except Exception as error:
        return Outcome(convention.id, Verdict.FAILED, message=described(error))


def judge(id: str, samples: Iterable[ConformanceSample]) -> Outcome:
    """The verdict over all samples.

    Raises ValueError if there is nothing to compare, or if the two sides have different shapes:
    such a check is broken.
    """
    compared = different = scales = values = 0
    largest = 0.0
    example = ""
    for sample in samples:
        ours, theirs = sample.ours, sample.theirs
        unequal = np.not_equal(*_flat(ours.codes, theirs.codes, "codes", sample))
        compared += unequal.size
        different += int(np.count_nonzero(unequal))
        scale_example = ""
        if ours.scales.keys() != theirs.scales.keys():
            raise ValueError(f"{sample.name}: {set(ours.scales)} against {set(theirs.scales)}")
        for name, stored in ours.scales.items():
            first, second = _flat(stored, theirs.scales[name], name, sample)
            bytes_differ = _bits(first) != _bits(second.astype(first.dtype))
            scales += int(np.count_nonzero(bytes_differ))
            if not scale_example and bytes_differ.any():
                at = int(np.argmax(bytes_differ))
                scale_example = f"{name} {at}: {first[at]:.9g} here, {second[at]:.9g} there"
        first, second = _flat(ours.values, theirs.values, "values", sample)
        off = ~((first == second) | (np.isnan(first) & np.isnan(second)))
        values += int(np.count_nonzero(off))
        largest = max(largest, _largest(first, second, off, sample.x))
        example = example or _example(sample, off if off.any() else unequal, scale_example)
    if compared == 0:
        raise ValueError(f"{id}: nothing was compared")
    verdict = Verdict.VALUE_EQUAL if different or scales else Verdict.BYTE_EQUAL
    if values:
        verdict = Verdict.DIFFERS
    return Outcome(id, verdict, compared, different, scales, values, largest, example)


def _flat(ours: Array, theirs: Array, what: str, sample: ConformanceSample) -> tuple[Array, Array]:
    ours, theirs = np.asarray(ours).reshape(-1), np.asarray(theirs).reshape(-1)
    if ours.size != theirs.size:
        raise ValueError(f"{sample.name}: {ours.size} {what} here and {theirs.size} there")
    return ours, theirs


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _largest(ours: Array, theirs: Array, off: Array, x: Array) -> float:
    """The largest difference of finite values, relative to the largest finite element."""
    both = off & np.isfinite(ours) & np.isfinite(theirs)
    if not both.any():
        return 0.0
    scale = float(np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0.0))
    gap = np.abs(ours[both].astype(np.float64) - theirs[both].astype(np.float64))
    return float(gap.max()) / (scale or 1.0)


def _example(sample: ConformanceSample, wrong: Array, scale_example: str) -> str:
    ours, theirs = sample.ours.values.reshape(-1), sample.theirs.values.reshape(-1)
    if wrong.any() and wrong.size == ours.size:
        at = int(np.argmax(wrong))
        x = sample.x.reshape(-1)
        given = f"{x[at]:.6g} becomes " if x.size == ours.size else ""
        return f"{sample.name}: {given}{ours[at]:.6g} here, {theirs[at]:.6g} there"
    return f"{sample.name}: {scale_example}" if scale_example else ""
