"""Changes one part of a scheme to its next value, or resizes its groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qtui_core.errors import UsageError
from qtui_core.schemes.granularity import (
    Granularity,
    PerBlock,
    PerColumn,
    PerGroup,
    PerModel,
    PerTile,
    kind_of,
    parse_granularity,
    size_of,
)
from qtui_core.schemes.scheme import (
    FIXED_GRANULARITY,
    MAX_DOUBLE_QUANTIZED_BLOCK,
    NESTED_BLOCK,
    ROUNDINGS,
    SCALE_RULES,
    SCHEME_FORMATS,
    Family,
    Scheme,
    refused_granularity,
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


def step_scheme(scheme: Scheme, part: str, direction: int) -> Scheme:
    """The scheme with one part changed to its next (`direction` 1) or previous (-1) possible value.
    `part` is `format`, `granularity`, `size`, `symmetry`, `zero_point`, `scale_rule`, `rounding`,
    `double_quantization`, `nested` or `outliers`.

    Raises UsageError, with the reason, if the part has no other value in this scheme.
    """
    match part:
        case "format":
            others = _others(tuple(SCHEME_FORMATS), scheme.format, direction)
            return with_format(scheme, next(others))
        case "granularity":
            return _step_granularity(scheme, direction)
        case "size":
            return _step_size(scheme, direction)
        case "symmetry":
            return replace(
                scheme, symmetric=not scheme.symmetric, scale_rule="", float_zero_point=False
            )
        case "zero_point":
            return replace(scheme, float_zero_point=not scheme.float_zero_point)
        case "scale_rule":
            return _step_rule(scheme, direction)
        case "rounding":
            return _step_rounding(scheme, direction)
        case "double_quantization":
            on = not scheme.double_quantization
            return replace(scheme, double_quantization=on, nested_block=NESTED_BLOCK)
        case "nested":
            return _step_nested(scheme, direction)
        case "outliers":
            return _step_outliers(scheme, direction)
        case _:
            raise UsageError(f"A scheme has no part named {part!r}.")


def resize_scheme(
    scheme: Scheme,
    *,
    size: int | None = None,
    nested: int | None = None,
    double_quantization: bool | None = None,
) -> Scheme:
    """The scheme with another size of its groups or blocks, another size of its nested blocks, and
    double quantization on or off. None leaves a part unchanged. Parts that the scheme does not have
    are ignored. If the result is impossible, the scheme is returned unchanged."""
    changes: dict[str, Any] = {}
    if (
        size is not None
        and isinstance(scheme.granularity, PerGroup | PerBlock)
        and scheme.family in RESIZABLE
    ):
        changes["granularity"] = type_of_groups(scheme)(size)
    if scheme.family is Family.CODEBOOK:
        nesting = scheme.double_quantization if double_quantization is None else double_quantization
        changes["double_quantization"] = nesting
        changes["nested_block"] = (nested or scheme.nested_block) if nesting else NESTED_BLOCK
    try:
        return replace(scheme, **changes)
    except UsageError:
        return scheme


def type_of_groups(scheme: Scheme) -> type[PerBlock] | type[PerGroup]:
    """The kind of groups of a scheme, or the kind that it would get."""
    blocks = scheme.family is Family.CODEBOOK or isinstance(scheme.granularity, PerBlock)
    return PerBlock if blocks else PerGroup


def with_format(scheme: Scheme, name: str) -> Scheme:
    """The scheme with another format, and with those of the other parts that it can have."""
    family = SCHEME_FORMATS[name].family
    integer = family is Family.INTEGER
    # A fixed granularity was not chosen by the user, so it is not kept.
    granularity = None if scheme.family in FIXED_GRANULARITY else scheme.granularity
    if granularity is None or refused_granularity(name, granularity) is not None:
        granularity = SCHEME_FORMATS[name].default
    symmetric = scheme.symmetric or not integer
    same_rules = scheme.symmetric and scheme.scale_rule in SCALE_RULES.get(family, ())
    nestable = (
        family is Family.CODEBOOK
        and isinstance(granularity, PerBlock)
        and granularity.size <= MAX_DOUBLE_QUANTIZED_BLOCK
    )
    made = Scheme(
        name,
        granularity,
        symmetric=symmetric,
        float_zero_point=scheme.float_zero_point and not symmetric,
        scale_rule=scheme.scale_rule if same_rules else "",
        double_quantization=scheme.double_quantization and nestable,
    )
    if made.double_quantization:
        made = replace(made, nested_block=scheme.nested_block)
    if scheme.rounding in roundings_of(made):
        made = replace(made, rounding=scheme.rounding, seed=scheme.seed)
    if integer and not isinstance(granularity, PerModel | PerColumn):
        made = replace(made, outlier_threshold=scheme.outlier_threshold)
    return made


def _step_granularity(scheme: Scheme, direction: int) -> Scheme:
    refusal: str | None = None
    current = kind_of(scheme.granularity) if scheme.granularity is not None else "tensor"
    if isinstance(scheme.granularity, PerTile):
        current = "tile"
    size = size_of(scheme.granularity) or 64
    for kind in _others(_KINDS, current, direction):
        granularity = _granularity(kind, size)
        refused = refused_granularity(scheme.format, granularity)
        alone = isinstance(granularity, PerModel | PerColumn)
        if refused is None and alone and scheme.outlier_threshold is not None:
            continue  # outlier columns cannot be left out of such scales
        if refused is None:
            return replace(scheme, granularity=granularity)
        refusal = refusal or refused
    raise UsageError(refusal or f"{scheme} has one granularity only.")


def _step_size(scheme: Scheme, direction: int) -> Scheme:
    granularity = scheme.granularity
    if granularity is None:
        raise UsageError(f"{scheme.format} is a cast without a scale: there is no group to resize.")
    current = size_of(granularity)
    if current is None:
        raise UsageError(
            f"A scale per {granularity} has no size to change; group, block and a square tile "
            f"have one."
        )
    size = _next(SIZES, current, direction)
    if isinstance(granularity, PerTile):
        return replace(scheme, granularity=PerTile(size, size))
    return replace(scheme, granularity=_granularity(kind_of(granularity), size))


def _step_rule(scheme: Scheme, direction: int) -> Scheme:
    rules = rules_of(scheme)
    if not rules:
        raise UsageError(
            f"{scheme.format} has one scale rule only: there are several for the integers, int2 to "
            f"int8, and for the mx formats."
        )
    if scheme.rounding != "nearest":
        rules = tuple(rule for rule in rules if rule != "signed")  # it has its own rounding
    rule = next(_others(rules, scheme.scale_rule, direction))
    return replace(scheme, symmetric=True, float_zero_point=False, scale_rule=rule)


def _step_rounding(scheme: Scheme, direction: int) -> Scheme:
    possible = roundings_of(scheme)
    rounding = next(_others(possible or ROUNDINGS, scheme.rounding, direction))
    # If only rounding to nearest is possible, this raises with the reason.
    return replace(scheme, rounding=rounding, seed=0)


def _step_nested(scheme: Scheme, direction: int) -> Scheme:
    if not scheme.double_quantization:
        raise UsageError(
            f"{scheme} has no nested blocks: turn double quantization on first, which nf4 and fp4 "
            f"have."
        )
    size = _next(NESTED_SIZES, scheme.nested_block, direction)
    return replace(scheme, nested_block=size)


def _step_outliers(scheme: Scheme, direction: int) -> Scheme:
    """Off, then 6.0, then half a unit more or less with each step; off again beyond either end."""
    current = scheme.outlier_threshold
    threshold: float | None = FIRST_THRESHOLD
    if current is not None:
        threshold = current + direction * THRESHOLD_STEP
        if not 0 < threshold <= LAST_THRESHOLD:
            threshold = None
    return replace(scheme, outlier_threshold=threshold)


def rules_of(scheme: Scheme) -> tuple[str, ...]:
    """The scale rules to choose from; empty if there is only one."""
    return scheme.scale_rules if len(scheme.scale_rules) > 1 else ()


def roundings_of(scheme: Scheme) -> tuple[str, ...]:
    """The roundings to choose from."""
    if scheme.family in (Family.CODEBOOK, Family.TERNARY) or scheme.scale_rule == "signed":
        return ()
    return ROUNDINGS


def _granularity(kind: str, size: int) -> Granularity:
    sizes = {"tile": f"{TILE}x{TILE}", "group": str(size), "block": str(size)}
    found = parse_granularity(f"{kind}{sizes.get(kind, '')}")
    assert found is not None
    return found


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
