"""A scheme as a line of knobs."""

from __future__ import annotations

from qtui.tui.panels.quantize.schemes import scheme_line
from qtui_core.schemes.scheme import Scheme


def knobs(text: str) -> dict[str, str]:
    """The value that each knob of a scheme shows."""
    line = scheme_line("A", Scheme.parse(text))
    assert line.text == str(Scheme.parse(text))
    return {knob.part: knob.value for knob in line.knobs}


def test_parts_that_a_format_lacks_are_no_knobs() -> None:
    assert knobs("int4:group32:signed") == {
        "format": "int4",
        "granularity": "group",
        "size": "32",
        "symmetry": "symmetric",
        "scale_rule": "signed",
        "outliers": "off",
    }
    assert knobs("mxfp4") == {
        "format": "mxfp4",
        "granularity": "group",
        "size": "32",
        "scale_rule": "floor",
        "rounding": "nearest",
    }
    assert knobs("bf16") == {"format": "bf16", "granularity": "no scale", "rounding": "nearest"}
    assert knobs("nf4") == {
        "format": "nf4",
        "granularity": "block",
        "size": "64",
        "double_quantization": "off",
    }


def test_values_of_knobs() -> None:
    assert "scale_rule" not in knobs("int4:asym")
    assert knobs("nf4:dq")["double_quantization"] == "on"
    assert knobs("nf4:dq128")["nested"] == "128"
    assert knobs("int4:asym:zpfloat")["zero_point"] == "float"
    assert knobs("int4:asym")["zero_point"] == "integer"
    assert knobs("int8:outliers6.5")["outliers"] == "6.5"
    assert (knobs("e4m3:tile128x128")["granularity"], knobs("e4m3:tile128x128")["size"]) == (
        "tile",
        "128",
    )
    assert knobs("e4m3:tile64x128")["granularity"] == "tile64x128"
    assert "size" not in knobs("e4m3:tile64x128")
