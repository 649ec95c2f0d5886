"""What the engine answers about captured activations, typed. No numpy here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from qtui_core.dataclass import dataclass

Record = TypeVar("Record")


def build(record: type[Record], data: Mapping[str, Any]) -> Record:
    """The dataclass from the keys it has; others are left out."""
    names = [field.name for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    return record(**{name: data[name] for name in names})


@dataclass(frozen=True)
class TextChoice:
    """What the model is to read: a prompt, a file, or the built-in text where both are None."""

    prompt: str | None = None
    file: str | None = None

    @property
    def params(self) -> dict[str, str]:
        """As the engine takes it."""
        pairs = {"prompt": self.prompt, "file": self.file}
        return {name: value for name, value in pairs.items() if value is not None}


@dataclass(frozen=True)
class Captured:
    """What a capture left of the module of one weight. `number` differs for each capture;
    `text` says what the model read; `note` is a sentence about how it computed, or empty."""

    number: int
    tensor: str
    module: str
    text: str
    note: str
    seconds: float
    tokens: int
    kept_tokens: int
    held_out_tokens: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Way:
    """One way to quantize the activation. Decibels are None where there is no error, and those
    on held-out text also where there is none (not `unseen`); `clipped` is the share outside a
    fixed range."""

    kind: str
    words: str
    scheme: str
    bits: float
    calibration_db: float | None
    held_out_db: float | None
    loss_db: float | None
    clipped: float
    unseen: bool

    @property
    def kept_db(self) -> float | None:
        """The SQNR that counts: on text the range was not made from, where there is such."""
        return self.held_out_db if self.unseen else self.calibration_db

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Way:
        last = data["held_out"] or data["calibration"]
        return build(
            cls,
            {
                **data,
                "calibration_db": data["calibration"]["sqnr_db"],
                "held_out_db": None if data["held_out"] is None else data["held_out"]["sqnr_db"],
                "clipped": last["clipped"],
                "unseen": data["held_out"] is not None,
            },
        )


@dataclass(frozen=True)
class Channel:
    """A channel and its largest magnitude; `ratio` is to that of the median channel, None
    beside a median of zero."""

    channel: int
    absmax: float
    ratio: float | None


@dataclass(frozen=True)
class Ranges:
    """One side of a module: the channels, and the ways to quantize it. `sampled` where the
    errors are over some of the tokens only."""

    side: str
    scheme: str
    features: int
    nonfinite: int
    sampled: bool
    standing_out: int
    channels: tuple[Channel, ...]
    ways: tuple[Way, ...]
    sentence: str

    @classmethod
    def parse(cls, scheme: str, data: Mapping[str, Any]) -> Ranges:
        channels = tuple(Channel(*row) for row in data["channels"])
        ways = tuple(Way.parse(row) for row in data["ways"])
        return build(cls, {**data, "scheme": scheme, "channels": channels, "ways": ways})


@dataclass(frozen=True)
class Outputs:
    """SQNR of the layer's output: `sqnr_db[w][a]` with weights under scheme w and activations
    under scheme a, of which number 0 is neither; None without any error. `worst_outputs` are
    output channels and their share of the squared error with both under the active scheme."""

    tokens: int
    schemes: tuple[str, ...]
    sqnr_db: tuple[tuple[float | None, ...], ...]
    worst_outputs: tuple[tuple[int, float], ...]
    sentence: str

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Outputs:
        table = tuple(tuple(row) for row in data["sqnr_db"])
        worst = tuple((int(channel), float(share)) for channel, share in data["worst_outputs"])
        lists = {"schemes": tuple(data["schemes"]), "sqnr_db": table, "worst_outputs": worst}
        return build(cls, {**data, **lists})
