"""Casts of torch on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch

from qtui_core.conformance import data
from qtui_core.conformance.checks.sides import split_cast
from qtui_core.conformance.compare import ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.formats.array import decode_array, encode_array


def casts(convention: Convention) -> Iterator[ConformanceSample]:
    """Casts to the type that the convention's call names; our decoder gives the values of both."""
    fmt, rounding, saturate = split_cast(convention.ours)
    dtype = getattr(torch, re.findall(r"torch\.(\w+)\)", convention.theirs)[-1])
    word = (torch.int16, np.uint16) if dtype.itemsize == 2 else (torch.uint8, np.uint8)
    for name in convention.numbers or data.CAST:
        x = data.numbers()[name]
        theirs = torch.from_numpy(x).to(dtype).view(word[0]).numpy().view(word[1])
        both = (encode_array(fmt, x, rounding, saturate), theirs)
        yield ConformanceSample(name, x, *(Side(codes, decode_array(fmt, codes)) for codes in both))
