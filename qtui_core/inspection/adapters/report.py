"""How much of an adapter's update survives merging and quantizing, as data."""

from __future__ import annotations

import math

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.inspection.report import Census

#: The models that are compared on a text: as the adapter was trained, the base without it, merged,
#: and with the adapter kept apart from a quantized base.
TRAINED, BASE, MERGED, APART = "trained", "base", "merged", "apart"
#: Between the two schemes of a way's name.
ONTO = " onto "


@dataclass(frozen=True)
class MergeWay:
    """One way to merge and quantize.

    Attributes:
        scheme: that the merged weights are quantized with.
        onto: the scheme of the base into whose dequantized values the update is merged; "" for the
            base as stored.
    """

    scheme: str
    onto: str = ""

    @property
    def name(self) -> str:
        return f"{self.scheme}{ONTO}{self.onto}" if self.onto else self.scheme


@dataclass(frozen=True)
class SurvivalSums:
    """Sums over the elements of weights, in float64. T is the trained weight: the base on which the
    adapter was trained with the update added in float32. U is the update: what merging adds to the
    base of this way.

    Attributes:
        update: of U².
        trained: of the squared update of T.
        along: of (Q(M) - Q(base))·U, where M is the merged weight and Q quantizes.
        error: of (Q(M) - T)².
        apart: of the squared error of the quantized base with the adapter kept apart from it.
        lost: values that Q makes NaN or infinite; the other sums are then meaningless.
    """

    update: float = 0.0
    trained: float = 0.0
    along: float = 0.0
    error: float = 0.0
    apart: float = 0.0
    lost: int = 0

    def __add__(self, other: SurvivalSums) -> SurvivalSums:
        return SurvivalSums(
            self.update + other.update,
            self.trained + other.trained,
            self.along + other.along,
            self.error + other.error,
            self.apart + other.apart,
            self.lost + other.lost,
        )


@dataclass(frozen=True)
class UpdateSurvival:
    """What one way keeps of the update, of a weight, a layer or all weights.

    All are None if there is no update, or if quantizing overflows.

    Attributes:
        kept: the projection of Q(M) - Q(base) onto U, over ‖U‖²: by how much of the update the
            quantized merged model differs from the quantized base. 1 is all of it; 0 means that
            rounding brings the update back to where the base was. Rounding errors of either sign
            cancel in it, so it may be 1 under an error much larger than the update.
        share: 1 - ‖Q(M) - T‖² / ‖update of T‖²: 1 if the quantized merged weight is the trained
            one, 0 if it is as far from it as the base without the update, and below 0 where the
            rounding error is larger than the update.
        error: ‖Q(M) - T‖ / ‖update of T‖: the error in sizes of the update.
        apart: the same of the quantized base with the adapter kept apart in its own dtype.
    """

    way: MergeWay
    sums: SurvivalSums

    PRINTED = (
        ("name", "way.name"),
        ("scheme", "way.scheme"),
        ("onto", "way.onto"),
        "kept",
        "share",
        ("error_over_update", "error"),
        ("apart_error_over_update", "apart"),
        ("overflowed", "sums.lost"),
    )

    @property
    def kept(self) -> float | None:
        if self.sums.lost or not self.sums.update:
            return None
        return self.sums.along / self.sums.update

    @property
    def share(self) -> float | None:
        return None if self.error is None else 1 - self.error**2

    @property
    def error(self) -> float | None:
        return self._over_update(self.sums.error)

    @property
    def apart(self) -> float | None:
        return self._over_update(self.sums.apart)

    def _over_update(self, squares: float) -> float | None:
        if self.sums.lost or not self.sums.trained:
            return None
        return math.sqrt(squares / self.sums.trained)


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


def ratio(one: float, other: float) -> float | None:
    """The square root of a quotient; None over zero."""
    return math.sqrt(one / other) if other else None


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
        kl_mean: its divergence; None where logits are not finite.
        kl_stderr: the standard error, from the means of the windows; None for one window.
        bits_per_parameter, nbytes: of the whole model, with the adapter where it is kept apart.
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
    """What the model loses on a text. Divergences are of the distribution of the next token from
    that of the model with the adapter as it was trained, nats a token.

    Attributes:
        base: of the model without the adapter: what the adapter changes.
        text: what was read, as a sentence.
    """

    base: float | None
    rows: tuple[DivergenceRow, ...]
    text: str

    PRINTED = (
        ("base_kl_mean", "base"),
        (MERGED, lambda found: found.of(MERGED)),
        (APART, lambda found: found.of(APART)),
        "text",
    )

    def of(self, kind: str) -> tuple[DivergenceRow, ...]:
        return tuple(row for row in self.rows if row.kind == kind)


@dataclass(frozen=True)
class AdapterReport:
    """An adapter merged into a base and quantized.

    Attributes:
        adapter, location: its name and place; `words` says what it is.
        nbytes: of its tensors.
        trained_on: the scheme of the base in training; "" for the base as stored.
        merging: how it is merged, as a sentence.
        ways: all weights together.
        bits: bits per parameter of each way, over the weights that change.
        weights: the least share first.
        layers: in their order.
        sample: what was read, as a sentence.
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
            lambda found: [
                {**printed(way), "bits_per_parameter": bits}
                for way, bits in zip(found.ways, found.bits, strict=True)
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
