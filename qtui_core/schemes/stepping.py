"""Changes one part of a scheme to its next value, or resizes its groups. What a scheme cannot have
it refuses itself, so everything here is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from qtui_core.errors import UsageError
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerGroup,
    PerTile,
    kind_of,
    parse_granularity,
    size_of,
)
from qtui_core.schemes.scheme import (
    FIXED_GRANULARITY,
    NESTED_BLOCK,
    ROUNDINGS,
    SCHEME_FORMATS,
    Family,
    Scheme,
)

#: Families whose groups or blocks may have any size.
RESIZABLE = (Family.INTEGER, Family.FLOAT, Family.CODEBOOK)
SIZES = (16, 32, 64, 128, 256, 512, 1024)
#: Numbers of scales that share a constant under double quantization.
NESTED_SIZES = (64, 128, 256, 512, 1024)
TILE = 128
#: The first outlier threshold, that of LLM.int8() (Dettmers et al. 2022); the step between two
#: thresholds, and the last one.
FIRST_THRESHOLD, THRESHOLD_STEP, LAST_THRESHOLD = 6.0, 0.5, 20.0
_KINDS = ("model", "tensor", "row", "column", "token", "group", "block", "tile")
#: Fields of a scheme with their new values.
Changes = dict[str, Any]


def step_scheme(scheme: Scheme, part: str, direction: int) -> Scheme:
    """The scheme with one part changed to its next (`direction` 1) or previous (-1) possible value.
    `part` is `format` or one of CHOICES.

    Raises UsageError, with the reason, if the part has no other value in this scheme.
    """
    if part == "format":
        return with_format(scheme, next(_others(tuple(SCHEME_FORMATS), scheme.format, direction)))
    if part not in CHOICES:
        raise UsageError(f"A scheme has no part named {part!r}.")
    refusal = UsageError(f"{scheme} has no other {part.replace('_', ' ')}.")
    for at, changes in enumerate(CHOICES[part](scheme, direction)):
        try:
            return replace(scheme, **changes)
        except UsageError as error:
            refusal = refusal if at else error
    raise refusal


def with_format(scheme: Scheme, name: str) -> Scheme:
    """The scheme with another format, and with those of the other parts that it can have."""
    # A fixed granularity was not chosen by the user, so it is not kept.
    chosen = None if scheme.family in FIXED_GRANULARITY else scheme.granularity
    return _changed(
        Scheme(name),
        {"granularity": chosen},
        {"symmetric": scheme.symmetric, "float_zero_point": scheme.float_zero_point},
        {"scale_rule": scheme.scale_rule},
        {
            "double_quantization": scheme.double_quantization,
            "nested_block": scheme.nested_block,
        },
        {"rounding": scheme.rounding, "seed": scheme.seed},
        {"outlier_threshold": scheme.outlier_threshold},
    )


def resize_scheme(
    scheme: Scheme,
    *,
    size: int | None = None,
    nested: int | None = None,
    double_quantization: bool | None = None,
) -> Scheme:
    """The scheme with another size of its groups or blocks, another size of its nested blocks, and
    double quantization on or off. None leaves a part unchanged; so does a scheme that does not have
    it."""
    changes: list[Changes] = []
    if isinstance(scheme.granularity, PerGroup | PerBlock) and scheme.family in RESIZABLE:
        size = size or scheme.granularity.size
        changes.append({"granularity": type_of_groups(scheme)(size)})
    on = scheme.double_quantization if double_quantization is None else double_quantization
    block = (nested or scheme.nested_block) if on else NESTED_BLOCK
    changes.append({"double_quantization": on, "nested_block": block})
    return _changed(scheme, *changes)


def _changed(scheme: Scheme, *changes: Changes) -> Scheme:
    """The scheme with all changes that are possible, one after the other."""
    for change in changes:
        with suppress(UsageError):
            scheme = replace(scheme, **change)
    return scheme


def type_of_groups(scheme: Scheme) -> type[PerBlock] | type[PerGroup]:
    """The kind of groups of a scheme, or the kind that it would get."""
    blocks = scheme.family is Family.CODEBOOK or isinstance(scheme.granularity, PerBlock)
    return PerBlock if blocks else PerGroup


def _granularities(scheme: Scheme, direction: int) -> Iterator[Changes]:
    own = scheme.granularity
    current = "tile" if isinstance(own, PerTile) else kind_of(own) if own else "tensor"
    for kind in _others(_KINDS, current, direction):
        yield {"granularity": _granularity(kind, size_of(own) or 64)}


def _granularity(kind: str, size: int) -> Granularity:
    sizes = {"tile": f"{TILE}x{TILE}", "group": str(size), "block": str(size)}
    granularity = parse_granularity(f"{kind}{sizes.get(kind, '')}")
    assert granularity is not None
    return granularity


def _sizes(scheme: Scheme, direction: int) -> Iterator[Changes]:
    own, current = scheme.granularity, size_of(scheme.granularity)
    if own is None or current is None:
        raise UsageError(f"{scheme} has no group, block or square tile whose size could change.")
    size = _next(SIZES, current, direction)
    tile = PerTile(size, size)
    yield {"granularity": tile if isinstance(own, PerTile) else _granularity(kind_of(own), size)}


def _rules(scheme: Scheme, direction: int) -> Iterator[Changes]:
    for rule in _others(scheme.scale_rules, scheme.scale_rule, direction):
        yield {"symmetric": True, "float_zero_point": False, "scale_rule": rule}


def _thresholds(scheme: Scheme, direction: int) -> Iterator[Changes]:
    """Off, then 6.0, then half a unit more or less with each step; off again beyond either end."""
    current = scheme.outlier_threshold
    threshold = FIRST_THRESHOLD if current is None else current + direction * THRESHOLD_STEP
    yield {"outlier_threshold": threshold if 0 < threshold <= LAST_THRESHOLD else None}


#: By part, the changes to try in this order, of a scheme in a direction.
CHOICES: dict[str, Callable[[Scheme, int], Iterable[Changes]]] = {
    "granularity": _granularities,
    "size": _sizes,
    "symmetry": lambda scheme, direction: [
        {"symmetric": not scheme.symmetric, "scale_rule": "", "float_zero_point": False}
    ],
    "zero_point": lambda scheme, direction: [{"float_zero_point": not scheme.float_zero_point}],
    "scale_rule": _rules,
    "rounding": lambda scheme, direction: [
        {"rounding": other, "seed": 0} for other in ROUNDINGS if other != scheme.rounding
    ],
    "double_quantization": lambda scheme, direction: [
        {"double_quantization": not scheme.double_quantization, "nested_block": NESTED_BLOCK}
    ],
    "nested": lambda scheme, direction: [
        {"nested_block": _next(NESTED_SIZES, scheme.nested_block, direction)}
    ],
    "outliers": _thresholds,
}


def roundings_of(scheme: Scheme) -> tuple[str, ...]:
    """The roundings to choose from."""
    if scheme.family in (Family.CODEBOOK, Family.TERNARY) or scheme.scale_rule == "signed":
        return ()
    return ROUNDINGS


def _next(sizes: tuple[int, ...], current: int, direction: int) -> int:
    """The next larger or smaller size, and from either end to the other."""
    if direction > 0:
        return next((size for size in sizes if size > current), sizes[0])
    return next((size for size in reversed(sizes) if size < current), sizes[-1])


def _others(values: tuple[str, ...], current: str, direction: int) -> Iterator[str]:
    """All other values in order, beginning after (or before) the current one."""
    at = values.index(current)
    for distance in range(1, len(values)):
        yield values[(at + direction * distance) % len(values)]
