"""The range of the numbers of a step beside the ranges of formats: table, picture and sentence, for
the report and for the Train panel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from qtui.report.document import Block, Column, Plotted, Table
from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.magnitudes import (
    HEADROOM,
    Magnitudes,
    best_scale,
    float_format,
    flushed,
    together,
)
from qtui_core.lab.numerics.exponents import histogram
from qtui_core.lab.results import ExponentHistogram
from qtui_core.live.snapshot import RangeKind, StepRanges

#: The formats whose ranges are drawn.
DRAWN: Final = ("fp32", "bf16", "fp16", "e5m2", "e4m3")
HELD: Final = ("fp16", "e5m2", "e4m3")
#: The kinds of tensors that a loss scale multiplies; their largest magnitude limits the scale.
GRADIENTS: Final[tuple[RangeKind, ...]] = ("output gradients", "weight gradients")
#: Below this share of gradients that become zero, the report says "next to none".
_NONE: Final = 5e-5


@dataclass(frozen=True)
class KindRange:
    """One kind of tensor, over one layer or all."""

    kind: RangeKind
    found: Magnitudes
    layers: Mapping[str, Magnitudes]

    @property
    def widest(self) -> str:
        """The layer with the largest magnitude."""
        return max(self.layers, key=lambda name: self.layers[name].largest)

    @property
    def most_flushed(self) -> str:
        """The layer that loses the largest share in FP16 without a scale."""
        return max(self.layers, key=lambda name: flushed("fp16", self.layers[name]))


def kinds_of(seen: StepRanges, layer: str = "") -> tuple[KindRange, ...]:
    """The kinds of tensors that were seen in a `layer`, or in all layers."""
    kinds: dict[RangeKind, dict[str, Magnitudes]] = {}
    for each in seen.ranges:
        if layer in ("", each.name) and each.found.there:
            kinds.setdefault(each.kind, {})[each.name] = each.found
    return tuple(KindRange(kind, together(all_.values()), all_) for kind, all_ in kinds.items())


def ranges_blocks(seen: StepRanges) -> Iterator[Block]:
    """The blocks of the report: picture, table and sentence."""
    kinds = kinds_of(seen)
    picture = ranges_picture(seen, kinds)
    if picture is not None:
        yield Plotted(picture)
        yield ranges_table(kinds)
    yield ranges_sentence(seen, kinds)


def ranges_picture(
    seen: StepRanges, kinds: tuple[KindRange, ...], log_scale: int = 0, layer: str = ""
) -> ExponentHistogram | None:
    """The histogram above the ranges of the formats. With a `log_scale` it has only gradients,
    multiplied by 2^log_scale."""
    if log_scale:
        kinds = tuple(each for each in kinds if each.kind in GRADIENTS)
    where = layer or "all linear layers"
    title = f"step {seen.step:,}, {where}: magnitudes by their power of two"
    return histogram(title, ((k.kind, k.found) for k in kinds), DRAWN, float(log_scale))


def ranges_table(kinds: tuple[KindRange, ...]) -> Table:
    """A row for each kind: its magnitudes, and the share that each format would make zero."""
    numbers = ("log2, median", "log2, largest")
    shares = tuple(f"{FORMATS[name].title}: become zero" for name in HELD)
    return Table(
        (Column("of", key=True), *(Column(name, numeric=True) for name in (*numbers, *shares))),
        tuple(
            (
                each.kind,
                _log(each.found.quantile(0.5)),
                _log(math.log2(each.found.largest) if each.found.largest else None),
                *(f"{flushed(name, each.found):.2%}" for name in HELD),
            )
            for each in kinds
        ),
    )


def ranges_sentence(seen: StepRanges, kinds: tuple[KindRange, ...]) -> str:
    """Which formats suffice for activations and gradients, and the recommended loss scale."""
    named = {each.kind: each for each in kinds}
    gradients = [named[kind] for kind in GRADIENTS if kind in named]
    said = list(_overflow(named.get("activations")))
    if not gradients:
        said.append("No gradient other than zero came to a linear layer in this step.")
        return " ".join(said)
    first = gradients[0]
    largest = max(each.found.largest for each in gradients)
    scale = best_scale("fp16", largest)
    lost = flushed("fp16", first.found)
    share = f"{lost:.2%}" if lost >= _NONE else "next to none"
    sentence = f"FP16 would make {share} of the {first.kind} zero without a loss scale"
    if lost >= _NONE and len(first.layers) > 1:
        most = first.most_flushed
        sentence += f", most in {most} ({flushed('fp16', first.layers[most]):.2%})"
    if scale is None or scale < 1:
        said.append(f"{sentence}; they are too large for one.")
    else:
        kept = flushed("fp16", first.found, scale)
        said.append(
            f"{sentence}; 2^{scale} makes {kept:.2%} zero and leaves room for gradients {HEADROOM} "
            "times as large."
        )
    small = flushed("e4m3", first.found)
    scaled = best_scale("e4m3", largest) or 0
    said.append(
        f"In FP8 E4M3 {small:.1%} would be zero, with a scale of 2^{scaled} "
        f"{flushed('e4m3', first.found, scaled):.1%}: gradients of 8 bits need scales of their own."
        if small >= _NONE
        else "Even FP8 E4M3 holds them without a scale."
    )
    return " ".join(said)


def _overflow(activations: KindRange | None) -> Iterator[str]:
    """A sentence if activations exceed the largest number of FP16."""
    if activations is not None and activations.found.largest > float(float_format("fp16").max):
        yield (
            f"Activations reach {activations.found.largest:.3g} in {activations.widest}, more than "
            "FP16 holds (65,504): compute in BF16."
        )


def _log(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
