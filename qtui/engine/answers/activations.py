"""Answers about captured activations: what was captured, ways to quantize it, and the output of the
layer."""

from __future__ import annotations

from typing import NamedTuple

from qtui_core.answers import RangeError
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class StageProgress:
    """The current activity in a few words, reported as progress."""

    stage: str


@dataclass(frozen=True)
class Captured:
    """The capture of one module.

    Attributes:
        number: differs for each capture.
        tensor: the name of the module's weight.
        module, kind: the name of the module and of its class.
        text: what the model read, in words.
        seconds: how long the model ran.
        tokens: tokens that the model read; the rows of `kept_tokens` of them are kept.
        held_out_tokens: tokens of the held-out text, 0 without one.
        inputs, outputs: features of the module's input and output.
    """

    number: int
    tensor: str
    module: str
    kind: str
    text: str
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
        "seconds",
        "tokens",
        "kept_tokens",
        "held_out_tokens",
        "inputs",
        "outputs",
    )


@dataclass(frozen=True)
class CapturedModules:
    """`captures` of the requested modules; `held` names the weights of all modules whose captures
    are in memory now."""

    captures: tuple[Captured, ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Way:
    """One way to quantize an activation, with its error on both texts.

    Attributes:
        kind, words: how its range is found, as a name and in words.
        extent: the fixed range (low, high) in the activation's unit; None if scales are computed
            from the values.
        bits: bits per value, scales included.
        held_out: None without a held-out text.
        loss_db: decibels lost from the calibration text to the held-out text; None if unknown.
    """

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
        """The error that counts: on the held-out text if there is one."""
        return self.held_out or self.calibration


class Channel(NamedTuple):
    """A channel and its largest magnitude. `ratio` is absmax over that of the median channel; None
    if the median is zero."""

    channel: int
    absmax: float
    ratio: float | None


@dataclass(frozen=True)
class Ranges:
    """The input or output (`side`) of a module.

    Attributes:
        nonfinite: NaN and infinities among its values.
        sampled: whether the errors are over some of the tokens only.
        channels: the largest first; the first `standing_out` of them are outliers.
        ways: the ways to quantize it.
    """

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
    """The error of a layer's output when its weights and activations are quantized.

    Attributes:
        sqnr_db, relative_mse: [w][a], with the weights under scheme w and the activations under
            scheme a; index 0 means not quantized. `sqnr_db` is None without an error,
            `relative_mse` without a signal.
        worst_outputs: (output channel, its share of the squared error), both under the active
            scheme.
        transposed: whether the weight is stored as `[in, out]`.
    """

    tokens: int
    schemes: tuple[str, ...]
    sqnr_db: tuple[tuple[float | None, ...], ...]
    relative_mse: tuple[tuple[float | None, ...], ...]
    worst_outputs: tuple[tuple[int, float], ...]
    transposed: bool
    sentence: str

    PRINTED = ("tokens", "schemes", "sqnr_db", "worst_outputs", "sentence")
