"""The range of the numbers of a step beside the ranges of formats: table, picture and sentence, for
the report and for the Train panel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from qtui.report.document import Block, Column, Plotted, Table
from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import E4M3, FORMATS, FP16
from qtui_core.formats.magnitudes import HEADROOM, Magnitudes, best_scale, flushed, together
from qtui_core.lab.numerics.exponents import histogram
from qtui_core.lab.results import ExponentHistogram
from qtui_core.live.snapshot import RangeKind, StepRanges, TensorRange
from qtui_core.quantities import plural

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


def ranges_sentence(seen: StepRanges, kinds: tuple[KindRange, ...], layer: str = "") -> str:
    """Which formats suffice for activations and gradients, and the recommended loss scale. `layer`:
    as for `kinds`."""
    gradients = [each for kind in GRADIENTS for each in kinds if each.kind == kind]
    said = [*_broken(seen, layer), *_overflow(kinds)]
    if gradients:
        largest = max(each.found.largest for each in gradients)
        said += [_fp16(gradients[0], largest), _fp8(gradients, largest)]
    elif not any(each.kind in GRADIENTS and each.found.counts[-1] for each in _of(seen, layer)):
        where = "this layer" if layer else "a linear layer"
        said.append(f"No gradient other than zero came to {where} in this step.")
    return " ".join(said)


def _of(seen: StepRanges, layer: str) -> Iterator[TensorRange]:
    return (each for each in seen.ranges if layer in ("", each.name))


def _broken(seen: StepRanges, layer: str) -> Iterator[str]:
    """A sentence if some values are not finite, of which no figure here speaks."""
    found = [each for each in _of(seen, layer) if each.found.counts[-1]]
    if found:
        count = sum(each.found.counts[-1] for each in found)
        first = found[0]
        yield (
            f"{plural(count, 'value is', 'values are')} infinite or NaN, first in the {first.kind} "
            f"of {first.name}; the rest of this is about the others."
        )


def _overflow(kinds: tuple[KindRange, ...]) -> Iterator[str]:
    """A sentence for each kind that exceeds the largest number of FP16."""
    for each in kinds:
        if each.found.largest > float(FP16.max):
            yield (
                f"{each.kind.capitalize()} reach {each.found.largest:.3g} in {each.widest}, more "
                f"than FP16 holds (65,504): compute in BF16."
            )


def _fp16(first: KindRange, largest: float) -> str:
    """What FP16 makes zero of the gradients, and the loss scale that helps."""
    lost = flushed("fp16", first.found)
    said = f"FP16 would make {_share(lost)} of the {first.kind} zero without a loss scale"
    if lost < _NONE:
        return f"{said}, so none is needed."
    if len(first.layers) > 1:
        most = first.most_flushed
        said += f", most in {most} ({flushed('fp16', first.layers[most]):.2%})"
    scale = best_scale("fp16", largest)
    if scale is None or scale < 1:
        return f"{said}; the largest gradient, {largest:.3g}, leaves no room for one."
    kept = _share(flushed("fp16", first.found, scale))
    return (
        f"{said}; 2^{scale} makes {kept} zero and leaves room for gradients {HEADROOM} times as "
        f"large."
    )


def _fp8(gradients: Sequence[KindRange], largest: float) -> str:
    """What FP8 E4M3 makes zero of the gradients, or where it ends."""
    worst = max(gradients, key=lambda each: flushed("e4m3", each.found))
    small, end = flushed("e4m3", worst.found), float(E4M3.max)
    own = "gradients of 8 bits need scales of their own."
    if largest > end:
        return f"FP8 E4M3 ends at {end:g}, and the largest gradient is {largest:.3g}: {own}"
    if small < _NONE:
        return "Even FP8 E4M3 holds them without a scale."
    scale = best_scale("e4m3", largest) or 0
    scaled = ""
    if scale > 0:
        scaled = f", with a scale of 2^{scale} {_share(flushed('e4m3', worst.found, scale))}"
    return f"FP8 E4M3 would make {_share(small)} of the {worst.kind} zero{scaled}: {own}"


def _share(share: float) -> str:
    return f"{share:.2%}" if share >= _NONE else "next to none"


def _log(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
