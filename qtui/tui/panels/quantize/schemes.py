"""The top of the panel: the two schemes as lines of knobs."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.screen.widgets.scheme_bar import Knob, SchemeBar, SchemeLine
from qtui_core.schemes.granularity import kind_of, size_of
from qtui_core.schemes.scheme import Family, Scheme
from qtui_core.schemes.stepping import roundings_of

LETTERS = "AB"


def show_schemes(bar: SchemeBar, schemes: Sequence[Scheme], active: int) -> None:
    """Shows the schemes as A and B; the panel handles their knobs."""
    bar.lines = tuple(
        scheme_line(letter, scheme) for letter, scheme in zip(LETTERS, schemes, strict=False)
    )
    bar.active = active


def scheme_line(letter: str, scheme: Scheme) -> SchemeLine:
    """The knobs of a scheme, without parts that its format lacks. If there is too little room,
    knobs with their usual value are left out first."""
    integer = scheme.family is Family.INTEGER
    knobs = [Knob("format", "", scheme.format)]
    if scheme.granularity is None:
        knobs.append(Knob("granularity", "a cast,", "no scale"))
    else:
        kind = kind_of(scheme.granularity)
        knobs.append(Knob("granularity", "scale per", kind, short="per"))
    if (size := size_of(scheme.granularity)) is not None:
        knobs.append(Knob("size", "of", str(size)))
    if integer:
        knobs.append(Knob("symmetry", "", "symmetric" if scheme.symmetric else "asymmetric"))
    if not scheme.symmetric:
        stored = "float" if scheme.float_zero_point else "integer"
        knobs.append(Knob("zero_point", "zero point", stored, "zero", stored == "integer"))
    elif len(scheme.scale_rules) > 1:
        knobs.append(Knob("scale_rule", "rule", scheme.scale_rule))
    if scheme.family is Family.CODEBOOK:
        state = "on" if scheme.double_quantization else "off"
        knobs.append(Knob("double_quantization", "double quantization", state, "dq"))
    if scheme.double_quantization:
        knobs.append(Knob("nested", "of", str(scheme.nested_block)))
    if roundings_of(scheme):
        usual = scheme.rounding == "nearest"
        knobs.append(Knob("rounding", "rounding", scheme.rounding, "", usual))
    if integer:
        threshold = scheme.outlier_threshold
        kept = "off" if threshold is None else f"{threshold:g}"
        knobs.append(Knob("outliers", "outliers", kept, "outliers", threshold is None))
    return SchemeLine(letter, str(scheme), tuple(knobs))
