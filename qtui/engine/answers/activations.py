"""Captured activations: what a capture left, ways to quantize it, and the output of its layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from qtui_core.answers.tensors import LayerErrors, RangeError
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class StageTold:
    """The current activity in a few words, reported as progress."""

    stage: str


@dataclass(frozen=True)
class Captured:
    """What a capture left of the module of one weight. `number` differs for each capture; `kind`
    is the module's class; `text` says what the model read; `note` is a sentence about how it
    computed, or empty. Of the `tokens` that it read, the rows of `kept_tokens` were kept."""

    number: int
    tensor: str
    module: str
    kind: str
    text: str
    note: str
    seconds: float
    tokens: int
    kept_tokens: int
    held_out_tokens: int
    inputs: int
    outputs: int

    PRINTED = (
        "number",
        "tensor",
        "module",
        "text",
        "note",
        "seconds",
        "tokens",
        "kept_tokens",
        "held_out_tokens",
        "inputs",
        "outputs",
    )


@dataclass(frozen=True)
class CapturesMade:
    """The modules that were asked for, and the weights whose modules captures are now held of."""

    captures: tuple[Captured, ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Way:
    """One way to quantize the activation, in `bits` for each value. `extent` is the fixed range,
    None where scales are computed from the values; `held_out` is None without such a text."""

    kind: str
    words: str
    scheme: str
    extent: tuple[float, float] | None
    bits: float
    calibration: RangeError
    held_out: RangeError | None
    loss_db: float | None

    PRINTED = (
        "kind",
        "words",
        "scheme",
        "bits",
        ("calibration_db", "calibration.sqnr_db"),
        ("held_out_db", lambda way: way.held_out and way.held_out.sqnr_db),
        "loss_db",
        ("clipped", "last.clipped"),
        ("unseen", lambda way: way.held_out is not None),
    )

    @property
    def last(self) -> RangeError:
        """The error that counts: on text the range was not made from, where there is such."""
        return self.held_out or self.calibration


class Channel(NamedTuple):
    """A channel and its largest magnitude; `ratio` is to that of the median channel, None
    beside a median of zero."""

    channel: int
    absmax: float
    ratio: float | None


@dataclass(frozen=True)
class Ranges:
    """One side of a module: the channels, largest first, and the ways to quantize it. `sampled`
    where the errors are over some of the tokens only; the first `standing_out` channels are
    outliers."""

    side: str
    scheme: str
    features: int
    nonfinite: int
    sampled: bool
    standing_out: int
    channels: tuple[Channel, ...]
    ways: tuple[Way, ...]
    sentence: str

    PRINTED = (
        "side",
        "scheme",
        "features",
        "nonfinite",
        "sampled",
        "standing_out",
        ("channels", lambda ranges: [channel._asdict() for channel in ranges.channels]),
        "ways",
        "sentence",
    )


@dataclass(frozen=True)
class Outputs:
    """The layer's output: `sqnr_db[w][a]` and `relative_mse[w][a]` with weights under scheme w and
    activations under scheme a, of which number 0 is neither; None without any error, or any
    signal. `worst_outputs` are output channels and their share of the squared error with both
    under the active scheme. `transposed` where the weight is stored as `[in, out]`."""

    tokens: int
    schemes: tuple[str, ...]
    sqnr_db: tuple[tuple[float | None, ...], ...]
    relative_mse: tuple[tuple[float | None, ...], ...]
    worst_outputs: tuple[tuple[int, float], ...]
    transposed: bool
    sentence: str

    PRINTED = ("tokens", "schemes", "sqnr_db", "worst_outputs", "sentence")


@dataclass(frozen=True)
class LayersWeighed:
    """The errors of the outputs of linear layers, by the names of their weights."""

    layers: Mapping[str, LayerErrors]
