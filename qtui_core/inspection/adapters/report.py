"""How much of an adapter's update survives merging and quantizing, as data."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.inspection.report import Census

#: The models that are compared on a text: as the adapter was trained, the base without it, merged,
#: and with the adapter kept apart from a quantized base.
TRAINED, BASE, MERGED, APART = "trained", "base", "merged", "apart"
#: Between the two schemes of a way's name.
ONTO = " onto "


def ratio(one: float, other: float) -> float | None:
    """The square root of a quotient; None over zero."""
    return math.sqrt(one / other) if other else None


@dataclass(frozen=True)
class UpdateSurvival:
    """What one way to merge and quantize keeps of the update, of a weight, a layer or all weights.

    Sums are over elements, in float64. T is the trained weight: the base on which the adapter was
    trained with the update added in float32. U is the update: what merging adds to the base of this
    way. M is the merged weight, and Q quantizes.

    Attributes:
        scheme: that the merged weights are quantized with.
        onto: the scheme of the base into whose dequantized values the update is merged; "" for the
            base as stored.
        update: sum of U².
        trained: sum of the squared update of T.
        along: sum of (Q(M) - Q(base))·U.
        squared_error: sum of (Q(M) - T)².
        squared_apart: the same of the quantized base with the adapter kept apart from it.
        lost: values that Q makes NaN or infinite; the sums are then without meaning.
    """

    scheme: str
    onto: str = ""
    update: float = 0.0
    trained: float = 0.0
    along: float = 0.0
    squared_error: float = 0.0
    squared_apart: float = 0.0
    lost: int = 0

    PRINTED = (
        "name",
        "scheme",
        "onto",
        "kept",
        "share",
        ("error_over_update", "error"),
        ("apart_error_over_update", "apart"),
        ("overflowed", "lost"),
    )

    def __add__(self, other: UpdateSurvival) -> UpdateSurvival:
        names = [field.name for field in fields(self)][2:]
        return replace(self, **{n: getattr(self, n) + getattr(other, n) for n in names})

    def scaled(self, factor: float) -> UpdateSurvival:
        """The sums of more elements like these."""
        names = [field.name for field in fields(self)][2:-1]
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    @property
    def name(self) -> str:
        return f"{self.scheme}{ONTO}{self.onto}" if self.onto else self.scheme

    @property
    def kept(self) -> float | None:
        """The projection of Q(M) - Q(base) onto U, over ‖U‖²: by how much of the update the
        quantized merged model differs from the quantized base. 1 is all of it; 0 means that
        rounding brings the update back to where the base was. Rounding errors of either sign cancel
        in it. None if there is no update, or if quantizing overflows."""
        return self.along / self.update if self.update and not self.lost else None

    @property
    def share(self) -> float | None:
        """1 if the quantized merged weight is the trained one, 0 if it is as far from it as the
        base without the update, below 0 where the rounding error is larger than the update."""
        return None if self.error is None else 1 - self.error**2

    @property
    def error(self) -> float | None:
        """‖Q(M) - T‖ / ‖update of T‖: the error in sizes of the update."""
        return None if self.lost else ratio(self.squared_error, self.trained)

    @property
    def apart(self) -> float | None:
        """The same of the quantized base with the adapter kept apart in its own dtype."""
        return None if self.lost else ratio(self.squared_apart, self.trained)


@dataclass(frozen=True)
class ChangedWeight:
    """A weight that the adapter changes. Sums are estimated for the whole from what was read.

    Attributes:
        rank: None for a weight that the adapter replaces.
        read: elements that were read.
        power: sum of the squared base.
        update: sum of the squared update, before the sum is rounded to the stored dtype.
        rounding: sum of the squared error of that rounding.
        ways: what survives, in the order of the report's ways; empty for what is not quantized:
            norms, biases, embeddings and heads.
    """

    name: str
    shape: tuple[int, ...]
    rank: int | None
    parameters: int
    read: int
    power: float
    update: float
    rounding: float
    ways: tuple[UpdateSurvival, ...]

    PRINTED = (
        "name",
        "shape",
        "rank",
        "parameters",
        ("sampled_parameters", "read"),
        ("update_over_weight", "relative"),
        "rounding_over_update",
        ("merges", "ways"),
    )

    @property
    def relative(self) -> float | None:
        """The size of the update over the size of the weight."""
        return ratio(self.update, self.power)

    @property
    def rounding_over_update(self) -> float | None:
        return ratio(self.rounding, self.update)


@dataclass(frozen=True)
class LayerSurvival:
    """The weights of one layer together. `layer` is its number, None for what is in no layer."""

    layer: int | None
    weights: int
    relative: float | None
    ways: tuple[UpdateSurvival, ...]

    PRINTED = ("layer", "weights", ("update_over_weight", "relative"), ("merges", "ways"))


@dataclass(frozen=True)
class DivergenceRow:
    """One model on the text.

    Attributes:
        name: of a way to merge, or the scheme of the base that the adapter is kept apart from.
        kind: MERGED or APART.
        kl_mean: None where logits are not finite.
        kl_stderr: from the means of the windows; None for one window.
        nbytes: of the whole model, with the adapter where it is kept apart.
        over_apart: of a merged model, its divergence less that of the same scheme with the adapter
            kept apart; None if one of the two is unknown.
        decided: whether that difference is beyond chance.
    """

    name: str
    kind: str
    kl_mean: float | None
    kl_stderr: float | None
    bits_per_parameter: float
    nbytes: int
    over_apart: float | None = None
    decided: bool = False

    PRINTED = (
        "name",
        "kl_mean",
        "kl_stderr",
        "bits_per_parameter",
        ("bytes", "nbytes"),
        "over_apart",
        "decided",
    )


@dataclass(frozen=True)
class MergedDivergence:
    """What the model loses on a text: how far the distribution of the next token is from that of
    the model with the adapter as it was trained, nats a token. `base` is that of the model without
    the adapter: what the adapter changes. `text` says what was read, as a sentence."""

    base: float | None
    rows: tuple[DivergenceRow, ...]
    text: str

    PRINTED = (
        ("base_kl_mean", "base"),
        (MERGED, lambda divergence: divergence.of(MERGED)),
        (APART, lambda divergence: divergence.of(APART)),
        "text",
    )

    def of(self, kind: str) -> tuple[DivergenceRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)


@dataclass(frozen=True)
class AdapterReport:
    """An adapter merged into a base and quantized.

    Attributes:
        words: what the adapter is; `nbytes` are those of its tensors.
        trained_on: the scheme of the base in training; "" for the base as stored.
        merging, sample: how it is merged, and what was read, as sentences.
        ways: all weights together, and their `bits` per parameter of those that change.
        weights: the least share first.
        divergence: None if no text was read.
    """

    base: Census
    adapter: str
    location: str
    words: str
    nbytes: int
    trained_on: str
    merging: str
    ways: tuple[UpdateSurvival, ...]
    bits: tuple[float, ...]
    weights: tuple[ChangedWeight, ...]
    layers: tuple[LayerSurvival, ...]
    sample: str
    notes: tuple[str, ...]
    divergence: MergedDivergence | None
    conclusion: str

    PRINTED = (
        ("model", "base"),
        (
            "adapter",
            (
                ("id", "adapter"),
                "location",
                ("kind", "words"),
                ("bytes", "nbytes"),
                "trained_on",
                ("merged_as", "merging"),
                ("update_over_weight", "relative"),
                "rounding_over_update",
            ),
        ),
        "sample",
        "notes",
        (
            "merges",
            lambda report: [
                {**printed(way), "bits_per_parameter": bits}
                for way, bits in zip(report.ways, report.bits, strict=True)
            ],
        ),
        "layers",
        ("tensors", "weights"),
        "divergence",
    )

    @property
    def relative(self) -> float | None:
        """The size of the update over that of the weights it changes."""
        return ratio(sum(w.update for w in self.weights), sum(w.power for w in self.weights))

    @property
    def rounding_over_update(self) -> float | None:
        """The error of rounding the sum to the stored dtype, in sizes of the update."""
        return ratio(sum(w.rounding for w in self.weights), sum(w.update for w in self.weights))
