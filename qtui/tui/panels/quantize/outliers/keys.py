"""The keys of the Outliers view and its help."""

from __future__ import annotations

from textual.binding import Binding

HELP = """\
## Outliers

At the left what was **detected**, and the columns. `m` turns how, `,` and `.` move the limit,
`l` types one (`8 sigma`, `|x| >= 0.5`, `6 times`):

- **by sigma**: elements further than so many standard deviations (3 to 12) from the mean. Outlier
  columns are those that hold them and stand out, or hold more than chance would put there.
- **by threshold**: elements of at least so large a magnitude, as LLM.int8() finds them in
  activations; there it starts at its 6.0. A weight has another unit: it starts where the columns
  that stand out are kept. Outlier columns are all that hold one. It is the threshold of the slider.
- **by column**: columns of more than so many times the median column's size, that is its largest
  magnitude or its root mean square.

A diamond marks outlier columns. **own** is the part of the squared error that sits in a column;
**caused** the part that would be gone if the column were kept in 16 bits: an outlier is itself
kept well, while its neighbours lose their precision to the scale it sets. *size* is the largest
magnitude over that of the median column. Columns that *carry* a share of the error cause it.

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
    Binding("m", "detection(1)", "Detect", id="quantize.detection",
            tooltip="Detect outliers by sigma, by threshold, by column"),
    Binding("M", "detection(-1)", "Detect back", show=False, id="quantize.detection_back",
            tooltip="The way to detect outliers before"),
    Binding("full_stop", "limit(1)", "Higher limit", show=False, id="quantize.higher_limit",
            tooltip="Detect fewer outliers: a higher limit"),
    Binding("comma", "limit(-1)", "Lower limit", show=False, id="quantize.lower_limit",
            tooltip="Detect more outliers: a lower limit"),
    Binding("l", "type_limit", "Limit", id="quantize.type_limit", priority=True,
            tooltip="Type the limit: 8 sigma, |x| >= 0.5, 6 times"),
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
