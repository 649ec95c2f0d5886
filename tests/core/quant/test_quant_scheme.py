"""The text of a scheme."""

import string

import pytest
from every import over
from hypothesis import given
from hypothesis import strategies as st
from scheme_table import EVERY_SCHEME

from qtui_core.errors import UsageError
from qtui_core.quant import PerBlock, PerColumn, PerGroup, PerModel, PerRow, PerTensor, Scheme


@over("any_scheme", EVERY_SCHEME)
def test_every_scheme_survives_its_text(any_scheme):
    scheme = Scheme.parse(any_scheme)
    assert str(scheme) == any_scheme
    assert Scheme.parse(str(scheme)) == scheme


DEFAULTS = {
    "nf4": "nf4:block64",
    "nf4:dq": "nf4:block64:dq",
    "fp4": "fp4:block64",
    "int2": "int2:group64",
    "int4:asym": "int4:group64:asym",
    "int8": "int8:row",
    "int6": "int6:row",
    "e4m3": "e4m3:tensor",
    "e2m1": "e2m1:group64",
    "bf16": "bf16",
    " INT4 : Group128 : SYM ": "int4:group128",
    "int4:sym:absmax": "int4:group64",
    "int4:full:row": "int4:row:full",
}


@over(("text", "full"), DEFAULTS.items())
def test_defaults_and_canonical_text(text, full):
    assert str(Scheme.parse(text)) == full
    assert Scheme.parse(text) == Scheme.parse(full)


def test_fields():
    assert Scheme.parse("nf4:block128:dq") == Scheme("nf4", PerBlock(128), double_quantization=True)
    assert Scheme.parse("int4:group32:asym") == Scheme("int4", PerGroup(32), symmetric=False)
    assert Scheme.parse("int4:row:signed") == Scheme("int4", PerRow(), scale_rule="signed")
    assert Scheme.parse("int4") == Scheme("int4")
    assert Scheme.parse("tf32").granularity is None
    kinds = [Scheme.parse(f"int8:{g}").granularity for g in ("model", "tensor", "column")]
    assert kinds == [PerModel(), PerTensor(), PerColumn()]


#: What is allowed instead -> what is refused.
REFUSED = {
    "int2 to int8": ["", "int9", "e4m3:asym", "e4m3:outliers6"],
    "nf4": ["fp32"],
    "granularity": ["int4:", "int4:stochastic99999999999", "int4:group\u0664"],
    "row": ["int4:rows"],
    "asym": ["int4:random"],
    "from 1 to": ["int4:group", "int4:group0", "int4:block99999999999999", "int4:tile0x4"],
    "one granularity": ["int4:group64:row"],
    "one symmetry": ["int4:sym:asym"],
    "one scale rule": ["int4:full:signed"],
    "one double quantization": ["nf4:dq:dq"],
    "min and max": ["int4:asym:full"],
    "nf4 and fp4": ["int4:dq"],
    "write just bf16": ["bf16:group64"],
    "nf4:block64": ["nf4:row"],
    "at most 4096": ["nf4:block8192:dq"],
    "1 to 4096": ["nf4:dq0"],
    "e2m1:group64": ["mxfp4:group64"],
    "e2m1:group32": ["nvfp4:group32"],
    "the mx formats": ["int4:rceil"],
    "ternary:tensor": ["ternary:model"],
    "nearest": ["ternary:stochastic", "nf4:stochastic"],
    "its own rounding": ["int4:signed:stochastic"],
    "tile128x128": ["int4:tile128"],
    "outliers6.0": ["int8:outliers"],
    "int8:row:outliers6": ["int8:column:outliers6"],
    "sym has none": ["int4:zpfloat:sym"],
}


@over(("names", "texts"), REFUSED.items())
def test_impossible_schemes_are_refused_with_what_is_allowed(names, texts):
    for text in texts:
        with pytest.raises(UsageError) as refusal:
            Scheme.parse(text)
        message = str(refusal.value)
        assert names in message
        assert message.endswith(".")
        assert "\n" not in message


@over(
    "make",
    [lambda: Scheme("nf4", PerRow()), lambda: Scheme("int4", symmetric=False, scale_rule="full"),
     lambda: Scheme("int4", scale_rule="percentile"), lambda: Scheme("float4"),
     lambda: PerGroup(0), lambda: PerBlock(-1)],
)  # fmt: skip
def test_impossible_combinations_are_refused_without_text_too(make):
    with pytest.raises(UsageError):
        make()


WORDS = ["int4", "nf4", "e4m3", "bf16", "row", "group64", "group", "block0", "asym", "sym", "full"]
PIECES = st.one_of(st.sampled_from([*WORDS, "dq", "", " "]), st.text(string.printable, max_size=9))


@given(st.lists(PIECES, max_size=5).map(":".join))
def test_any_text_is_a_scheme_or_a_usage_error(text):
    try:
        scheme = Scheme.parse(text)
    except UsageError:
        return
    assert Scheme.parse(str(scheme)) == scheme
