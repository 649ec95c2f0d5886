"""`qtui formats` as a user runs it."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest

DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "fp32": np.float32,
}


def formats(qtui, *args):
    done = qtui("formats", *args, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    return data, {row["name"]: row for row in data["formats"]}


@pytest.mark.parametrize("value", ["0.1", "-3.3", "1e-3", "447", "1/3"])
def test_values_are_those_of_ml_dtypes(qtui, value):
    _, rows = formats(qtui, value)
    number = eval(value)
    for name, dtype in DTYPES.items():
        assert rows[name]["value"] == float(np.float64(number).astype(dtype)), name


def test_codes_and_errors_of_a_tenth(qtui):
    data, rows = formats(qtui, "0.1")
    assert data["value"]["fraction"] == "1/10"
    assert rows["fp32"]["code"] == struct.unpack("<I", struct.pack("<f", 0.1))[0]
    assert rows["fp32"]["error"] == pytest.approx(1.4901161193847656e-9, rel=1e-12)
    assert rows["bf16"]["hex"] == "0x3dcd"
    assert rows["e2m1"]["outcome"] == "underflow"


def test_rounding_and_saturation_are_obeyed(qtui):
    _, rows = formats(qtui, "1e6", "--no-saturate")
    assert rows["e4m3"]["kind"] == "NaN"
    assert rows["fp16"]["kind"] == "infinity"
    assert rows["fp16"]["value"] is None
    _, rows = formats(qtui, "1e6", "--saturate")
    assert (rows["e4m3"]["value"], rows["fp16"]["value"]) == (448.0, 65504.0)
    _, rows = formats(qtui, "232.04", "--rounding", "toward-zero")
    assert rows["e4m3"]["value"] == 224.0
    _, rows = formats(qtui, "232.04")
    assert rows["e4m3"]["value"] == 240.0


def test_stochastic_rounding_uses_the_bits_given(qtui):
    low = formats(qtui, "0.1", "--rounding", "stochastic", "--random-bits", "0x0000")[1]
    high = formats(qtui, "0.1", "--rounding", "stochastic", "--random-bits", "0xffff")[1]
    assert (low["e4m3"]["value"], high["e4m3"]["value"]) == (0.09375, 0.1015625)


def test_negative_values_codes_and_subsets(qtui):
    _, rows = formats(qtui, "-0.1", "--only", "bf16, e4m3")
    assert list(rows) == ["bf16", "e4m3"]
    assert rows["bf16"]["sign_bits"] == "1"
    data, rows = formats(qtui, "e4m3:0x7e")
    assert rows["e4m3"]["value"] == 448.0
    assert data["value"]["text"] == "448"


def test_without_a_value_the_formats_are_listed(qtui):
    _, rows = formats(qtui)
    assert rows["e4m3"]["max"] == 448.0
    assert rows["e5m2"]["min_subnormal"] == 2.0**-16
    assert len(rows) >= 18


@pytest.mark.parametrize(
    "args", [("abc",), ("0x12",), ("--nonsense",), ("0.1", "--only", "fp7"), ("1/0",), ("",)]
)
def test_bad_input_is_a_sentence(qtui, args):
    done = qtui("formats", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert len(done.stderr) > 20


def test_every_face_says_the_conclusion(qtui):
    conclusion = formats(qtui, "0.1")[0]["conclusion"]
    assert conclusion in qtui("formats", "0.1").stdout
    assert conclusion in qtui("formats", "0.1", "--format", "html").stdout


def test_a_tie_is_called_one_and_neighbours_are_printed(qtui):
    """1 + 2^-8 lies between two numbers of BF16; E4M3 rounds it without a tie."""
    done = qtui("formats", "1.00390625", "--only", "bf16,e4m3,fp16")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "|" in line}
    assert "rounded from a tie, normal" in rows["BF16"]
    assert rows["BF16"].split()[3:6] == ["1", "0.996094", "1.00781"]
    assert "rounded, normal" in rows["E4M3"]
    assert "exact, normal" in rows["FP16"]
    up = qtui("formats", "1.00390625", "--only", "bf16", "--rounding", "up").stdout
    assert "rounded from a tie, normal" in up
    assert "a tie" not in qtui("formats", "1e39", "--only", "bf16,e4m3").stdout
