"""Where the magnitudes of tensors lie. One histogram of the exponent fields of float32 answers
every format and every scale that is a power of two: their thresholds are powers of two themselves.

What is too large for a format is read off the largest magnitude instead: the largest numbers of
formats are no powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.spec import FloatFormat
from qtui_core.lab.numerics.products import linears
from qtui_core.lab.results import ExponentHistogram, FormatSpan

#: Values of the exponent field of float32, and what is taken from it. Field 0 is zero and what is
#: below the normal numbers, field 255 is infinite or NaN.
FIELDS: Final = 256
_BIAS: Final = 127


@dataclass(frozen=True)
class Magnitudes:
    """Magnitudes of float32.

    Attributes:
        counts: `counts[i]` of them, not zero, have the exponent field i: they are in
            [2^(i-127), 2^(i-126)); those of field 0 are below 2^-126, of field 255 not finite.
        zeros: how many are zero.
        largest: the largest that is finite.
    """

    counts: tuple[int, ...]
    zeros: int
    largest: float

    @property
    def there(self) -> int:
        """How many are not zero, and finite."""
        return sum(self.counts[:-1])

    def below(self, exponent: int) -> float:
        """The share of those that are not zero under 2^exponent."""
        end = min(max(exponent + _BIAS, 0), FIELDS - 1)
        return sum(self.counts[:end]) / self.there if self.there else 0.0

    def quantile(self, share: float) -> float | None:
        """The base-2 logarithm of the magnitude that so large a share is under, even within a
        power of two; None where all are zero."""
        wanted = share * self.there
        for field, count in enumerate(self.counts[:-1]):
            if count and wanted <= count:
                return field - _BIAS + wanted / count
            wanted -= count
        return None


def magnitudes(x: torch.Tensor) -> Magnitudes:
    """Of a tensor of any shape, read as float32."""
    flat = x.detach().float().contiguous().view(-1)
    fields = (flat.view(torch.int32) >> 23) & (FIELDS - 1)
    counts = torch.bincount(fields, minlength=FIELDS)
    zeros = int((flat == 0).sum())
    counts[0] -= zeros
    largest = float(flat.abs().nan_to_num(0.0, 0.0).max()) if flat.numel() else 0.0
    return Magnitudes(tuple(counts.tolist()), zeros, largest)


def together(parts: Iterable[Magnitudes]) -> Magnitudes:
    """All of them."""
    found = list(parts)
    columns = zip(*(part.counts for part in found), strict=True)
    return Magnitudes(
        tuple(map(sum, columns)) if found else (0,) * FIELDS,
        sum(part.zeros for part in found),
        max((part.largest for part in found), default=0.0),
    )


@contextmanager
def gradients_seen(model: nn.Module, tell: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Inside the `with`, `tell` is given each linear layer's name and the gradient of its output,
    as backward passes come to it."""

    def hook(name: str) -> Any:
        def kept(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda gradient: tell(name, gradient))

        return kept

    hooks = [module.register_forward_hook(hook(name)) for name, module in linears(model).items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def flushed(format_name: str, found: Magnitudes, log_scale: int = 0) -> float:
    """The share of those that are not zero that become zero in a format once they are multiplied
    by 2^log_scale: under half of its smallest number. Half of it itself becomes zero too, which a
    histogram does not see."""
    smallest = round(math.log2(_format(format_name).min_positive))
    return found.below(smallest - 1 - log_scale)


def best_scale(format_name: str, largest: float, room: float) -> int | None:
    """The base-2 logarithm of the largest power of two that leaves `room` times the largest
    magnitude within a format; None where that magnitude is zero."""
    if not largest > 0:
        return None
    return math.floor(math.log2(float(_format(format_name).max) / (room * largest)))


def span(format_name: str) -> FormatSpan:
    """What a format holds, as the bar under a histogram."""
    found = _format(format_name)
    low, whole, high = (math.log2(x) for x in (found.min_positive, found.min_normal, found.max))
    return FormatSpan(found.title, low, whole, high)


def histogram(
    title: str,
    series: Iterable[tuple[str, Magnitudes]],
    formats: Iterable[str],
    shift: float = 0.0,
) -> ExponentHistogram | None:
    """The picture of some magnitudes over formats; None where nothing is there."""
    kept = list(series)
    used = [i for _, found in kept for i, count in enumerate(found.counts[:-1]) if count]
    if not used:
        return None
    first, last = min(used), max(used)
    return ExponentHistogram(
        title,
        first - _BIAS,
        tuple((name, found.counts[first : last + 1]) for name, found in kept),
        tuple(map(span, formats)),
        shift,
    )


def _format(name: str) -> FloatFormat:
    found = FORMATS[name]
    assert isinstance(found, FloatFormat)
    return found
