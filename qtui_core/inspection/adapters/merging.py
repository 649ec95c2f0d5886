"""The weights of a base with an adapter merged into them.

W' = W + s·B·A. The product B·A is summed in float64 and rounded to float32 once (peft's order of
summation is that of its BLAS, so its last bit may differ), multiplied by s in float32, and added to
W in float32; the sum is rounded once, to the dtype in which the base stores W. So does peft's
`merge_and_unload`: it loads adapters as float32, and torch adds a float32 tensor to one of 16 bits
in float32. Only of an embedding does peft round the update to the stored dtype before it adds. A
packed base is dequantized to float32 and the sum stays float32, which peft's Linear4bit quantizes
again. DoRA scales the sum to m / ‖W + s·B·A‖, a norm for each output
(`DoraLinearVariant.merge_unsafe`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.reading import Adapter, LoraModule
from qtui_core.inspection.comparison.pairing import core_name
from qtui_core.inspection.recipes.recipe import RecipeTensor
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.files.arrays import Float32, RowReader
from qtui_core.models.quoting import listed, quoted
from qtui_core.packed import LogicalWeight, logical_weights, open_weight
from qtui_core.packed.gguf_names import is_gguf
from qtui_core.packed.views import Rows

#: Elements of an update that are computed at once.
_CHUNK = 1 << 18
#: The casts to the dtypes in which a sum is stored. A sum of F64 weights stays float32.
_NARROW = ("BF16", "F16")
_MERGED_DTYPES = ("F32", "F64", *_NARROW)
#: Model types whose layers store weights as [in, out] (transformers' Conv1D).
_IN_OUT = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "gptsan-japanese"})
_IN_OUT_LAYERS = ("c_attn", "c_proj", "c_fc", "q_attn")


class LowRank:
    """The rows of s·B·A in the orientation of a stored weight.

    Attributes:
        shape: (rows, columns) of the weight.
    """

    def __init__(self, left: NDArray[np.floating], right: NDArray[np.floating], scale: float):
        """`left` [rows, r] and `right` [r, columns]: B and A, or for [in, out] their transposes."""
        self._left, self._right = left.astype(np.float64), right.astype(np.float64)
        self._scale = np.float32(scale)
        self.shape = (left.shape[0], right.shape[1])

    def rows(self, start: int, stop: int) -> Float32:
        found = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        height = max(1, _CHUNK // self.shape[1])
        with np.errstate(over="ignore"):  # infinite is refused where it is merged
            for first in range(start, stop, height):
                last = min(stop, first + height)
                found[first - start : last - start] = self._left[first:last] @ self._right
            found *= self._scale
        return found


def is_quantized(info: TensorInfo) -> bool:
    """Whether schemes are applied to a weight here: to matrices other than embeddings and heads,
    which bitsandbytes and most tools leave as stored, also in training."""
    tensor = RecipeTensor(info.name, None, *info.matrix, info.dtype)
    return len(info.shape) >= 2 and not (tensor.is_embedding or tensor.is_head)


@dataclass(frozen=True, eq=False)
class MergedWeight:
    """A weight of the base that an adapter changes.

    Attributes:
        weight: as the base stores it.
        rank: of the update; None for a weight that the adapter replaces.
        stored: "BF16" and so on: what the sum is rounded to; "" if it stays float32.
        update: s·B·A; None for a weight that the adapter replaces.
        new: the rows that replace the weight before the update is added, if the adapter has them.
        magnitude: DoRA's, float32; None without.
        by_column: whether the outputs are the columns of the stored weight.
        rounds_first: whether the update is rounded before it is added, as peft does for embeddings.
    """

    weight: LogicalWeight
    rank: int | None
    stored: str
    update: Rows | None
    new: Rows | None = None
    magnitude: Float32 | None = None
    by_column: bool = False
    rounds_first: bool = False

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def info(self) -> TensorInfo:
        return self.weight.info


class WholeRows:
    """The rows of a matrix that is in memory, float32 `[rows, columns]`."""

    def __init__(self, matrix: Float32) -> None:
        self.shape = (matrix.shape[0], matrix.shape[1])
        self._matrix = matrix

    def rows(self, start: int, stop: int) -> Float32:
        return self._matrix[start:stop]


def round_stored(values: Float32, stored: str) -> Float32:
    """Values rounded to the nearest of BF16 or F16, ties to even, beyond the largest infinite; as
    they are for ""."""
    if stored not in _NARROW:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        if stored == "F16":
            return values.astype(np.float16).astype(np.float32)
        words = np.ascontiguousarray(values).view(np.uint32)
        rounded = (words + np.uint32(0x7FFF) + (words >> 16 & np.uint32(1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, rounded.view(np.float32))


class MergedRows:
    """The rows of a merged weight over those of a base, as stored or as it was trained.

    Attributes:
        shape: (rows, columns).
    """

    def __init__(self, merged: MergedWeight, base: Rows, *, rounded: bool = True) -> None:
        """`rounded`: to the stored dtype; otherwise the sum in float32."""
        self.shape = base.shape
        self._merged, self._base = merged, base
        self._rounded = rounded
        self._factor: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        """Raises ModelError if a value is not finite."""
        found = self._sum(start, stop)
        magnitude = self._merged.magnitude
        if magnitude is not None:
            if self._merged.by_column:
                found = found * self._columns(magnitude)
            else:
                norm = np.sqrt(np.square(found, dtype=np.float64).sum(axis=1)).astype(np.float32)
                found = found * _factors(magnitude[start:stop], norm)[:, None]
        if self._rounded:
            found = round_stored(found, self._merged.stored)
        if not np.isfinite(found).all():
            raise ModelError(
                f"{quoted(self._merged.name)} with the adapter merged has values that are NaN, "
                f"infinite or beyond the range of {self._merged.stored or 'float32'}: find out "
                f"where they come from first."
            )
        return found

    def _sum(self, start: int, stop: int) -> Float32:
        base = self._merged.new or self._base
        found = base.rows(start, stop)
        if self._merged.update is None:
            return found
        change = self._merged.update.rows(start, stop)
        if self._merged.rounds_first and self._rounded:
            change = round_stored(change, self._merged.stored)
        with np.errstate(all="ignore"):
            return found + change

    def _columns(self, magnitude: Float32) -> Float32:
        """DoRA's factor of each column, whose norm takes a pass over all rows."""
        if self._factor is None:
            total = np.zeros(self.shape[1])
            height = max(1, _CHUNK // self.shape[1])
            for first in range(0, self.shape[0], height):
                part = self._sum(first, min(self.shape[0], first + height))
                total += np.square(part, dtype=np.float64).sum(axis=0)
            self._factor = _factors(magnitude, np.sqrt(total).astype(np.float32))
        return self._factor


def _factors(magnitude: Float32, norm: Float32) -> Float32:
    with np.errstate(all="ignore"):  # a norm of zero is refused with the values it leads to
        found: Float32 = magnitude / norm
    return found


@dataclass(frozen=True, eq=False)
class Merge:
    """An adapter and the weights of a base that it changes.

    Attributes:
        weights: by name, in the base's order.
        added: names of tensors of the adapter that the base does not have, such as a new head.
        notes: what to bear in mind, as sentences.
    """

    base: ModelSource
    adapter: Adapter
    weights: Mapping[str, MergedWeight]
    added: tuple[str, ...]
    notes: tuple[str, ...]

    def open_base(self, merged: MergedWeight) -> Rows:
        """The rows of a weight as the base has it. Raises what `open_weight` raises."""
        return open_weight(self.base, merged.weight)


def merge_adapter(base: ModelSource, adapter: Adapter) -> Merge:
    """Finds the weight of the base for each module of an adapter, and what it becomes.

    Raises ModelError if the adapter is not of this base: a module that the base does not have, or a
    weight of another shape; or if the base is stored in a way that is not merged.
    """
    if is_gguf(base):
        raise ModelError(
            f"{quoted(base.id)} is a GGUF file, whose weights are stored in another order: give "
            f"the checkpoint that the adapter was trained on."
        )
    weights = logical_weights(base)
    cores: dict[str, list[str]] = {}
    for name in weights:
        cores.setdefault(core_name(name), []).append(name)

    def find(name: str) -> LogicalWeight | None:
        if name in weights:
            return weights[name]
        alike = cores.get(core_name(name), [])
        return weights[alike[0]] if len(alike) == 1 else None

    found: dict[str, MergedWeight] = {}
    added: list[str] = []
    for name, stored in adapter.replaced.items():
        weight = find(name)
        if weight is None:
            added.append(name)
            continue
        if weight.name in found:
            raise ModelError(_twice(adapter, weight.name))
        found[weight.name] = _replacing(base, adapter, weight, stored)
    for module in adapter.modules.values():
        weight = find(f"{module.name}.weight")
        if weight is None:
            raise ModelError(_no_such_module(base, adapter, module.name, list(weights)))
        earlier = found.get(weight.name)
        if earlier is not None and earlier.update is not None:
            raise ModelError(_twice(adapter, weight.name))
        found[weight.name] = _updating(base, adapter, weight, module, earlier)
        if module.bias is not None:
            bias = find(f"{module.name}.bias")
            if bias is None or bias.shape != module.bias.shape:
                raise ModelError(
                    f"The adapter {quoted(adapter.source.id)} trains a bias of "
                    f"{quoted(module.name)}, and {quoted(base.id)} has none of that shape."
                )
            change = LowRank(module.bias[:, None], np.ones((1, 1)), module.scale)
            stored_as = _stored_dtype(base, bias)
            found[bias.name] = MergedWeight(bias, module.rank, stored_as, change)
    ordered = {name: found[name] for name in weights if name in found}
    return Merge(base, adapter, ordered, tuple(added), tuple(_notes(base, ordered, added)))


def _replacing(
    base: ModelSource, adapter: Adapter, weight: LogicalWeight, stored: str
) -> MergedWeight:
    shape = adapter.source.tensors[stored].shape
    if shape != weight.shape:
        raise ModelError(
            f"The adapter {quoted(adapter.source.id)} replaces {quoted(weight.name)} by one of "
            f"shape {list(shape)}, and that of {quoted(base.id)} is {list(weight.shape)}: resize "
            f"the base's embeddings as for the training, and save it."
        )
    new = RowReader(adapter.source, stored)
    return MergedWeight(weight, None, _stored_dtype(base, weight), None, new)


def _updating(
    base: ModelSource,
    adapter: Adapter,
    weight: LogicalWeight,
    module: LoraModule,
    earlier: MergedWeight | None,
) -> MergedWeight:
    left, right, by_column = module.b, module.a, False
    if module.embedding or _is_in_out(base, adapter, weight, module):
        left, right, by_column = module.a.T, module.b.T, True
    if weight.shape != (left.shape[0], right.shape[1]):
        raise ModelError(
            f"The adapter {quoted(adapter.source.id)} changes {quoted(weight.name)} by A "
            f"{list(module.a.shape)} and B {list(module.b.shape)}, and in {quoted(base.id)} it is "
            f"{list(weight.shape)}: the adapter is of another base."
        )
    return MergedWeight(
        weight,
        module.rank,
        _stored_dtype(base, weight),
        LowRank(left, right, module.scale),
        None if earlier is None else earlier.new,
        module.magnitude,
        by_column,
        module.embedding and module.magnitude is None,
    )


def _is_in_out(
    base: ModelSource, adapter: Adapter, weight: LogicalWeight, module: LoraModule
) -> bool:
    """Whether a weight is stored as [in, out]. Of a square one, the class of the model tells, or
    else the adapter's fan_in_fan_out."""
    straight = (module.b.shape[0], module.a.shape[1])
    if straight[0] != straight[1]:
        return weight.shape == straight[::-1]
    if (base.config or {}).get("model_type") in _IN_OUT:
        return module.name.rpartition(".")[2] in _IN_OUT_LAYERS
    return adapter.settings.fan_in_fan_out


def _stored_dtype(base: ModelSource, weight: LogicalWeight) -> str:
    if weight.quantized:
        return ""
    if weight.method not in _MERGED_DTYPES:
        raise ModelError(
            f"{quoted(weight.name)} of {quoted(base.id)} is stored as {weight.method}, into which "
            f"qtui merges no adapter: give a base of 16 or 32 bits."
        )
    return weight.method if weight.method in _NARROW else ""


def _twice(adapter: Adapter, name: str) -> str:
    return (
        f"The adapter {quoted(adapter.source.id)} changes {quoted(name)} under two names: which "
        f"counts is unknown."
    )


def _no_such_module(base: ModelSource, adapter: Adapter, name: str, weights: list[str]) -> str:
    tied = ""
    if name.rpartition(".")[2] in ("lm_head", "embed_out"):
        tied = " Its head may be tied to its embedding: then the merged model needs one of its own."
    return (
        f"The adapter {quoted(adapter.source.id)} changes {quoted(name)}, and {quoted(base.id)} "
        f"has no weight of that name; it has {listed(weights)}.{tied}"
    )


def _notes(base: ModelSource, weights: Mapping[str, MergedWeight], added: list[str]) -> list[str]:
    notes = []
    if added:
        notes.append(
            f"{listed(added)} of the adapter: the base has no tensor of that name, so nothing is "
            f"said of it."
        )
    embedded = [name for name, merged in weights.items() if merged.rounds_first]
    if embedded and (base.config or {}).get("tie_word_embeddings"):
        notes.append(
            f"{quoted(embedded[0])} is tied to the head: merged, the update changes both, and kept "
            f"apart only the embedding."
        )
    return notes
