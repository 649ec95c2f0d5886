"""The figures of each command's JSON that can be limited, as tables.

A figure is named by its key in JSON or a short alias. If a report has several lists of rows, the
name of the list comes first (`tensors.sqnr`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.figures import LIMITED
from qtui_core.quantities import format_bytes


@dataclass(frozen=True)
class GateFigure:
    """A figure that can be limited.

    Attributes:
        key: its name in JSON.
        alias: a short name.
        unit: "bytes", "dB", "share" or "".
        falls: whether a lower figure is worse.
        slack: how much worse than in the baseline it may be: a share of the baseline's figure if
            `relative`, else in its unit.
    """

    key: str
    alias: str = ""
    unit: str = ""
    falls: bool = False
    slack: float = 0.0
    relative: bool = False

    def limit(self, before: float) -> float:
        """The worst figure that is allowed if the baseline has `before`."""
        slack = abs(before) * self.slack if self.relative else self.slack
        return before - slack if self.falls else before + slack

    def text(self, value: float) -> str:
        """A figure with its unit: `19.87 dB`, `1,610,612,736 bytes (1.5 GiB)`."""
        if math.isinf(value):
            return f"infinite {self.unit}".rstrip()
        if self.unit == "bytes":
            short = "" if abs(value) < 1000 else f" ({format_bytes(round(value))})"
            return f"{round(value):,} bytes{short}"
        exact = f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
        return exact + (" dB" if self.unit == "dB" else "")

    @property
    def slack_text(self) -> str:
        """The slack in words."""
        return f"{100 * self.slack:g}%" if self.relative else self.text(self.slack)


_OF_RUNS = ("resident_bytes", "peak_live_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
            "process_bytes")  # fmt: skip
FIGURES: Final = {
    figure.key: figure
    for figure in (
        GateFigure("sqnr_db", "sqnr", "dB", falls=True, slack=0.05),
        GateFigure("relative_mse", slack=0.01, relative=True),
        GateFigure("relative_error", "error", slack=0.01, relative=True),
        GateFigure("kl_sum", slack=0.02, relative=True),
        GateFigure("max_abs_error", slack=0.01, relative=True),
        GateFigure("bits_per_parameter", "bits", slack=0.001),
        GateFigure("bytes", unit="bytes"),
        GateFigure("saturated"),
        GateFigure("nonfinite"),
        *(GateFigure(f.name, f.alias, f.unit, f.falls, f.slack, f.relative) for f in LIMITED),
        # resident_bytes is called "resident", peak_live_bytes "live".
        *(
            GateFigure(key, key.removesuffix("_bytes").removeprefix("peak_"), "bytes", slack=0.001,
                       relative=True)
            for key in (*_OF_RUNS[:2], *_OF_RUNS[3:])
        ),
        GateFigure("peak_allocated_bytes", "peak", "bytes", slack=0.001, relative=True),
        GateFigure("allocated_bytes", "allocated", "bytes", slack=0.001, relative=True),
        GateFigure("kept", falls=True, slack=0.005),
        GateFigure("error_over_update", slack=0.01, relative=True),
        GateFigure("headroom_bytes", "headroom", "bytes", falls=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class GatedRows:
    """A list of rows in the JSON of a command.

    Attributes:
        name: of the list, before its figures in an expression.
        path: the keys that lead to the list: (key, the key that names a row of the list, or "" for
            an object). Without a path the report itself is the only row.
        figures: keys of FIGURES.
        compared: whether these rows are compared with a baseline.
        reference: the name of the row with which the others are compared; gates ignore it.
    """

    name: str
    path: tuple[tuple[str, str], ...]
    figures: tuple[str, ...]
    compared: bool = True
    reference: str = ""

    def found(self, data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(name, row) of each row of the report, without the reference."""
        rows: list[tuple[tuple[str, ...], Any]] = [((), data)]
        for depth, (key, naming) in enumerate(self.path, 1):
            inner = [(names, row.get(key)) for names, row in rows if isinstance(row, Mapping)]
            if naming:
                rows = [
                    ((*names, str(row.get(naming))), row)
                    for names, listed in inner
                    for row in (listed if isinstance(listed, list) else ())
                    if isinstance(row, Mapping)
                ]
            else:
                last = (key,) if depth == len(self.path) else ()
                rows = [((*names, *last), row) for names, row in inner]
        for names, row in rows:
            name = " ".join(names)
            if isinstance(row, Mapping) and (name != self.reference or not name):
                yield name, row


@dataclass(frozen=True)
class Gated:
    """The rows of a command's JSON that can be limited.

    Attributes:
        rows: the lists. A figure that is named without its list belongs to the first list with it.
        marks: keys by which a report of this command is recognised: no other command has all.
        settings: keys of settings of the user; a baseline with other values gets a note.
        needed: keys of settings, with points between them; a baseline with other values is
            refused, because its figures cannot be compared.
    """

    rows: tuple[GatedRows, ...]
    marks: tuple[str, ...]
    settings: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


_OF_ERRORS = ("sqnr_db", "relative_mse", "bits_per_parameter")
_OF_EVALUATIONS = (*(f.name for f in LIMITED), "nonfinite", "bits_per_parameter", "bytes")
_OF_MERGES = ("kept", "error_over_update")
_INSPECTED = (
    GatedRows("schemes", (("schemes", "scheme"),), (*_OF_ERRORS, "bytes", "saturated")),
    GatedRows("tensors", (("tensors", "name"), ("errors", "scheme")),
              (*_OF_ERRORS, "max_abs_error", "saturated")),
    GatedRows("memory", (("memory", ""),), _OF_RUNS),
)  # fmt: skip

#: Command -> the rows of its JSON that can be limited. Other commands have no gates.
GATED: Final = {
    "inspect": Gated(_INSPECTED, ("tensors", "schemes"), ("sample",)),
    "inspect --sensitivity": Gated(
        (
            GatedRows("sensitivity", (("sensitivity", ""),),
                      ("sqnr_db", "relative_error", "kl_sum", "bits_per_parameter", "bytes")),
            # Not compared: another text has another divergence.
            GatedRows("judged", (("sensitivity", ""), ("judged", ""), ("assignment", "")),
                      _OF_EVALUATIONS, compared=False),
            *_INSPECTED,
        ),
        ("tensors", "schemes", "sensitivity"), ("sample",), needed=("sensitivity.weighed_by",),
    ),
    "inspect --headers": Gated(_INSPECTED[2:], ("tensors", "schemes")),
    "inspect --against": Gated(
        (
            GatedRows("against", (("against", ""),), _OF_ERRORS),
            GatedRows("tensors", (("against", ""), ("tensors", "name")),
                      (*_OF_ERRORS[:2], "max_abs_error")),
        ),
        ("against",), ("sample",),
    ),
    "inspect --adapter": Gated(
        (
            GatedRows("merges", (("merges", "name"),), (*_OF_MERGES, "bits_per_parameter")),
            GatedRows("tensors", (("tensors", "name"), ("merges", "name")), _OF_MERGES),
            GatedRows("divergence", (("divergence", ""), ("merged", "name")),
                      ("kl_mean", "bits_per_parameter", "bytes")),
        ),
        ("adapter", "merges"), ("sample",),
    ),
    "memory": Gated(
        (
            GatedRows("run", (), _OF_RUNS),
            GatedRows("fits", (("fits", "gpu"),), ("headroom_bytes",), compared=False),
            GatedRows("phases", (("phases", "name"),), ("allocated_bytes",), compared=False),
            GatedRows("components", (("components", "name"),), ("bytes",), compared=False),
        ),
        ("plan", "peak_allocated_bytes"), ("plan", "gpu"),
    ),
    "eval": Gated(
        (GatedRows("rows", (("rows", "scheme"),), _OF_EVALUATIONS, reference="original"),),
        ("text", "rows"), needed=("text",),
    ),
}  # fmt: skip
