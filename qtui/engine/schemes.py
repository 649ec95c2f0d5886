"""Schemes for a person who turns one knob at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qtui_core.errors import UsageError
from qtui_core.quant.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerRow,
    PerTensor,
)
from qtui_core.quant.scheme import SCHEME_FORMATS, Family, Scheme

SIZES = (16, 32, 64, 128, 256, 512, 1024)
_KINDS = ("model", "tensor", "row", "column", "group", "block")


def describe_scheme(scheme: Scheme) -> dict[str, Any]:
    """The parts of a scheme as JSON. A part that the format does not have is None."""
    size = getattr(scheme.granularity, "size", None)
    integer = scheme.family is Family.INTEGER
    return {
        "text": str(scheme),
        "format": scheme.format,
        "granularity": _kind(scheme.granularity) if scheme.granularity is not None else None,
        "size": size,
        "symmetric": scheme.symmetric if integer else None,
        "scale_rule": scheme.scale_rule if integer and scheme.symmetric else None,
        "double_quantization": (
            scheme.double_quantization if scheme.family is Family.CODEBOOK else None
        ),
    }


def step_scheme(scheme: Scheme, part: str, direction: int) -> Scheme:
    """The scheme with one part (`format`, `granularity`, `size`, `symmetry`, `scale_rule`,
    `double_quantization`) turned to its next (1) or previous (-1) possible value.

    Raises UsageError, with the reason, where the part has no other value in this scheme.
    """
    match part:
        case "format":
            return _step_format(scheme, direction)
        case "granularity":
            return _step_granularity(scheme, direction)
        case "size":
            return _step_size(scheme, direction)
        case "symmetry":
            return replace(scheme, symmetric=not scheme.symmetric, scale_rule="")
        case "scale_rule":
            rule = next(_others(scheme.scale_rules, scheme.scale_rule, direction))
            return replace(scheme, symmetric=True, scale_rule=rule)
        case "double_quantization":
            return replace(scheme, double_quantization=not scheme.double_quantization)
        case _:
            raise UsageError(f"A scheme has no part named {part!r}.")


def _step_format(scheme: Scheme, direction: int) -> Scheme:
    """The next format, with as much of the rest as it can have."""
    name = next(_others(tuple(SCHEME_FORMATS), scheme.format, direction))
    attempts = (
        {"format": name},
        {"format": name, "symmetric": True, "scale_rule": "", "double_quantization": False},
    )
    for changes in attempts:
        try:
            return replace(scheme, **changes)
        except UsageError:
            continue  # this much of the old scheme does not go with the new format
    return Scheme(name)


def _step_granularity(scheme: Scheme, direction: int) -> Scheme:
    refusal: UsageError | None = None
    current = _kind(scheme.granularity) if scheme.granularity is not None else "tensor"
    size = getattr(scheme.granularity, "size", 64)
    for kind in _others(_KINDS, current, direction):
        try:
            return replace(scheme, granularity=_granularity(kind, size))
        except UsageError as error:
            refusal = refusal or error
    raise refusal or UsageError(f"{scheme} has one granularity only.")


def _step_size(scheme: Scheme, direction: int) -> Scheme:
    granularity = scheme.granularity
    if not isinstance(granularity, PerGroup | PerBlock):
        raise UsageError(
            f"A scale per {granularity} has no size to change; group and block have one."
            if granularity is not None
            else f"{scheme.format} is a cast without a scale, so there is no group to resize."
        )
    larger = [size for size in SIZES if size > granularity.size]
    smaller = [size for size in SIZES if size < granularity.size]
    if direction > 0:
        size = larger[0] if larger else SIZES[0]
    else:
        size = smaller[-1] if smaller else SIZES[-1]
    return replace(scheme, granularity=type(granularity)(size))


def _kind(granularity: Granularity) -> str:
    match granularity:
        case PerGroup():
            return "group"
        case PerBlock():
            return "block"
        case _:
            return str(granularity)


def _granularity(kind: str, size: int) -> Granularity:
    match kind:
        case "model":
            return PerModel()
        case "tensor":
            return PerTensor()
        case "row":
            return PerRow()
        case "column":
            return PerColumn()
        case "group":
            return PerGroup(size)
        case _:
            return PerBlock(size)


def _others(values: tuple[str, ...], current: str, direction: int) -> Iterator[str]:
    """Every other value, in turn, starting after (or before) the current one."""
    at = values.index(current)
    for distance in range(1, len(values)):
        yield values[(at + direction * distance) % len(values)]
