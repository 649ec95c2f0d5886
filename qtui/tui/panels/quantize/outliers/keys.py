"""The keys of the Outliers view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Outliers

At the left are the **detected** outliers and the columns. `m` changes how outliers are detected,
`,` and `.` move the limit:

- **by sigma**: elements further than this many standard deviations (3 to 12) from the mean. Outlier
  columns have such elements and are large, or have more of them than chance would explain.
- **by threshold**: elements of at least this magnitude, as in LLM.int8(). For activations the limit
  starts at 6.0, as in LLM.int8(); for weights, where it keeps the large columns. Every column with
  such an element is an outlier column. The slider has the same threshold.
- **by column**: columns that are larger than this many times the median column, by their largest
  magnitude or their root mean square.

A diamond marks outlier columns. **own** is the share of the squared error inside a column, and
**caused** the share that would vanish if the column were kept in 16 bits: an outlier itself is
represented well, but it sets a large scale, and its neighbours lose precision. *size* is the
largest magnitude divided by that of the median column. A column *carries* the share of the error
that it causes.

At the right is the SQNR of the format under each granularity, with the number of scales and the
bits per parameter. `i` injects an outlier into the tensor: a value or `20 sigma`, `at 5,40` or
`at column 5`. The lighter part of a bar is the loss that it causes. The SQNR then counts the energy
of the original values, because the outlier's own energy would raise it. All views show the tensor
with the outlier until it is removed.

**LLM.int8()** keeps the columns with an element of at least the threshold in 16 bits. `<` and
`>` move the threshold.
"""

KEYS: tuple[Binding, ...] = (
    # A key that opens a field has priority: its action runs before the next key is handled.
    Binding("i", "inject", "Inject", id="quantize.inject", priority=True,
            tooltip="Inject an outlier into the tensor"),
    Binding("m", "detection(1)", "Detect", id="quantize.detection",
            tooltip="Detect outliers by sigma, by threshold, by column"),
    Binding("M", "detection(-1)", "Detect back", show=False, id="quantize.detection_back",
            tooltip="Previous way to detect outliers"),
    Binding("full_stop", "limit(1)", "Higher limit", show=False, id="quantize.higher_limit",
            tooltip="Detect fewer outliers: a higher limit"),
    Binding("comma", "limit(-1)", "Lower limit", show=False, id="quantize.lower_limit",
            tooltip="Detect more outliers: a lower limit"),
    Binding("x", "clear_injection", "Remove", show=False, id="quantize.take_out",
            tooltip="Remove the outlier"),
    Binding("plus", "resize(1)", "Larger", show=False,
            id="quantize.larger_outlier", tooltip="Double the outlier"),
    Binding("minus", "resize(-1)", "Smaller", show=False, id="quantize.smaller_outlier",
            tooltip="Halve the outlier"),
    Binding("less_than_sign", "threshold(-1)", "Higher T", show=False,
            id="quantize.higher_threshold",
            tooltip="LLM.int8(): a higher threshold, fewer columns in 16 bits"),
    Binding("greater_than_sign", "threshold(1)", "Lower T",
            id="quantize.lower_threshold",
            tooltip="LLM.int8(): a lower threshold, more columns in 16 bits"),
)  # fmt: skip
