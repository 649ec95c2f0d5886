"""Activations of a model: captured, observed and quantized.

`capture` runs the model and needs torch and transformers. What is imported here needs only numpy.
"""

from qtui_core.activations.observers import (
    ActivationRecord,
    MinMax,
    ModuleRecord,
    Observed,
    Observer,
    Percentile,
    RangeRule,
    Side,
)
from qtui_core.activations.output_error import OutputError, output_errors
from qtui_core.activations.ranges import (
    ActivationScheme,
    RangeError,
    RangeReport,
    as_written,
    compare_ranges,
    static,
    ways_of,
)
