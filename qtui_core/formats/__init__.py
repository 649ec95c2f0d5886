"""What a number format is, and what it does to a value. Exact, and without numpy.

The same verbs on numpy arrays are in qtui_core.formats.array.
"""

from qtui_core.formats.catalog import (
    BF16,
    E2M1,
    E2M3,
    E3M0,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FORMATS,
    FP16,
    FP32,
    FP64,
    INT4,
    INT8,
    INT16,
    MXINT8,
    TF32,
    float_format,
    get_format,
)
from qtui_core.formats.decimals import exact_fraction_text, format_exact, format_rounded
from qtui_core.formats.neighbours import (
    Interval,
    next_code_down,
    next_code_up,
    rounding_interval,
    ulp,
)
from qtui_core.formats.rounding import Rounding
from qtui_core.formats.scalar import Exact, Kind, decode, encode, exact
from qtui_core.formats.spec import FloatFormat, Format, IntFormat, Specials
from qtui_core.formats.summary import summarize
from qtui_core.formats.table import FormatOutcome, FormatRow, describe_code, describe_value
from qtui_core.formats.text import Typed, parse_code, parse_input, parse_value
