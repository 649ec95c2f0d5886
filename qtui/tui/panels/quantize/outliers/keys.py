"""The keys of the Outliers view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Outliers

At the left the elements beyond six sigma and the columns. **own** is the part of the squared
error that sits in a column; **caused** the part that would be gone if the column were kept in 16
bits: an outlier is itself kept well, while its neighbours lose their precision to the scale it
sets. Columns marked with a diamond stand out: their largest magnitude is many times that of the
median column (*size*). Columns that *carry* a share of the error cause it.

At the right the SQNR of the format under each granularity, with the number of scales and the
bits per parameter. `i` puts an outlier into the tensor: a value or `20 sigma`, `at 5,40` or
`at column 5`. The lighter part of a bar is what it took. The error is then compared with the
values as they were, for the outlier itself would raise the SQNR. All views show the tensor with
the outlier until it is taken out again.

**LLM.int8()** keeps the columns with an element of at least the threshold in 16 bits. `<` and
`>` move the threshold.
"""

KEYS: tuple[Binding, ...] = (
    # What opens a field takes effect before the next key is given to anyone.
    Binding("i", "inject", "Inject", id="quantize.inject", priority=True,
            tooltip="Put an outlier into the tensor"),
    Binding("I,escape", "clear_injection", "Take out", show=False, id="quantize.take_out",
            tooltip="Take the outlier out again"),
    Binding("plus,equals_sign", "resize(1)", "Larger", show=False,
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
