"""The weights of a base with an adapter merged into them.

W' = W + s·B·A. The product B·A is summed in float64 and rounded to float32 once (peft's order of
summation is that of its BLAS, so its last bit may differ), multiplied by s in float32, and added to
W in float32; the sum is rounded once, to the dtype in which the base stores W. So does peft's
`merge_and_unload`: it loads adapters as float32, and torch adds a float32 tensor to one of 16 bits
in float32. A packed base is dequantized to float32 and the sum stays float32, which peft's
Linear4bit quantizes again. DoRA scales the sum to m / ‖W + s·B·A‖, a norm for each output
(`DoraLinearVariant.merge_unsafe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.reading import Adapter, LoraModule, fault, left_to_peft
from qtui_core.inspection.comparison.pairing import core_name
from qtui_core.inspection.recipes.recipe import RecipeTensor
from qtui_core.inspection.sample import Strip, read_strips
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.files.arrays import Float32, RowReader
from qtui_core.models.quoting import listed, quoted
from qtui_core.packed import LogicalWeight, logical_weights, open_weight
from qtui_core.packed.gguf_names import is_gguf
from qtui_core.quant.elements import RowSource

#: Elements of an update that are computed at once.
_CHUNK = 1 << 18
#: The casts to the dtypes in which a sum is stored. A sum of F64 weights stays float32.
_NARROW = ("BF16", "F16")
_MERGED_DTYPES = ("F32", "F64", *_NARROW)

#: Merges into rows of a base, float32 `[rows, columns]`; `rounded` to the stored dtype or not.
#: Raises ModelError if a value is not finite.
Merging = Callable[[Float32, bool], Float32]


@dataclass(frozen=True, eq=False)
class MergedWeight:
    """A weight of the base that an adapter changes.

    Attributes:
        weight: as the base stores it.
        stored: "BF16" and so on: what the sum is rounded to; "" if it stays float32.
        new: the rows that replace the weight before the update is added, if the adapter has them.
        factors: B and A, or for a weight that is stored as [in, out] their transposes, `[rows, r]`
            and `[r, columns]`; None for a weight that the adapter only replaces.
        scale: what their product is multiplied by.
        magnitude: DoRA's, float32 `[rows]`; None without.
    """

    weight: LogicalWeight
    stored: str
    new: RowSource | None = None
    factors: tuple[Float32, Float32] | None = None
    scale: float = 1.0
    magnitude: Float32 | None = None

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def info(self) -> TensorInfo:
        return self.weight.info

    @property
    def rank(self) -> int | None:
        """Of the update; None for a weight that the adapter replaces."""
        return None if self.factors is None else int(self.factors[1].shape[0])

    def merging(self, strips: Sequence[Strip]) -> Merging:
        """What merges into the given rows of any base: the stored one, or one as it was trained.
        The update is computed once."""
        update = None if self.factors is None else self._update(strips)
        new = None if self.new is None else read_strips(self.new, strips)
        lengths = None
        if self.magnitude is not None:
            lengths = np.concatenate([self.magnitude[start:stop] for start, stop in strips])

        def merged(base: Float32, rounded: bool) -> Float32:
            values = base if new is None else new
            with np.errstate(all="ignore"):  # what is infinite or divided by zero is refused
                if update is not None:
                    values = values + update
                if lengths is not None:
                    norm = np.sqrt(np.square(values, dtype=np.float64).sum(axis=1))
                    values = values * (lengths / norm.astype(np.float32))[:, None]
            if rounded:
                values = round_stored(values, self.stored)
            if not np.isfinite(values).all():
                raise ModelError(
                    f"{quoted(self.name)} with the adapter merged has values that are NaN, "
                    f"infinite or beyond the range of {self.stored or 'float32'}: find out where "
                    f"they come from first."
                )
            return values

        return merged

    def _update(self, strips: Sequence[Strip]) -> Float32:
        assert self.factors is not None
        left, right = (each.astype(np.float64) for each in self.factors)
        update = np.empty((sum(stop - start for start, stop in strips), right.shape[1]), np.float32)
        height, at = max(1, _CHUNK // right.shape[1]), 0
        with np.errstate(over="ignore"):
            for start, stop in strips:
                for first in range(start, stop, height):
                    last = min(stop, first + height)
                    update[at : at + last - first] = left[first:last] @ right
                    at += last - first
            update *= np.float32(self.scale)
        return update


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


def is_quantized(info: TensorInfo) -> bool:
    """Whether schemes are applied to a weight here: to matrices other than embeddings and heads,
    which bitsandbytes and most tools leave as stored, also in training."""
    tensor = RecipeTensor(info.name, None, *info.matrix, info.dtype)
    return len(info.shape) >= 2 and not (tensor.is_embedding or tensor.is_head)


@dataclass(frozen=True, eq=False)
class Merge:
    """An adapter and the weights of a base that it changes, by name in the base's order. `added`
    are names of tensors of the adapter that the base does not have, such as a new head."""

    base: ModelSource
    adapter: Adapter
    weights: Mapping[str, MergedWeight]
    added: tuple[str, ...]
    notes: tuple[str, ...]

    def open_base(self, merged: MergedWeight) -> RowSource:
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
        alike = [name] if name in weights else cores.get(core_name(name), [])
        return weights[alike[0]] if len(alike) == 1 else None

    merged: dict[str, MergedWeight] = {}
    added: list[str] = []
    for name, stored in adapter.replaced.items():
        weight = find(name)
        if weight is None:
            added.append(name)
            continue
        if weight.name in merged:
            raise _twice(adapter, weight.name)
        merged[weight.name] = _replacing(base, adapter, weight, stored)
    for module in adapter.modules.values():
        weight = find(f"{module.name}.weight")
        if weight is None:
            raise _no_such_module(base, adapter, module.name, list(weights))
        earlier = merged.get(weight.name)
        if earlier is not None and earlier.factors is not None:
            raise _twice(adapter, weight.name)
        new = None if earlier is None else earlier.new
        merged[weight.name] = _updating(base, adapter, weight, module, new)
    note = (
        f"{listed(added)} of the adapter: the base has no tensor of that name, so nothing is said "
        f"of it."
    )
    ordered = {name: merged[name] for name in weights if name in merged}
    return Merge(base, adapter, ordered, tuple(added), (note,) if added else ())


def _replacing(
    base: ModelSource, adapter: Adapter, weight: LogicalWeight, stored: str
) -> MergedWeight:
    shape = adapter.source.tensors[stored].shape
    if shape != weight.shape:
        raise fault(
            adapter.source,
            f"replaces {quoted(weight.name)} by one of shape {list(shape)}, and that of "
            f"{quoted(base.id)} is {list(weight.shape)}: resize the base's embeddings as for the "
            f"training, and save it",
        )
    return MergedWeight(weight, _stored_dtype(base, weight), RowReader(adapter.source, stored))


def _updating(
    base: ModelSource,
    adapter: Adapter,
    weight: LogicalWeight,
    module: LoraModule,
    new: RowSource | None,
) -> MergedWeight:
    factors = module.b, module.a
    straight = module.b.shape[0], module.a.shape[1]
    square = straight[0] == straight[1]
    if adapter.settings.fan_in_fan_out if square else weight.shape == straight[::-1]:
        if module.magnitude is not None:
            raise left_to_peft(adapter.source, f"is a DoRA of {quoted(module.name)}, a Conv1D")
        factors = module.a.T, module.b.T
    if weight.shape != (factors[0].shape[0], factors[1].shape[1]):
        raise fault(
            adapter.source,
            f"changes {quoted(weight.name)} by A {list(module.a.shape)} and B "
            f"{list(module.b.shape)}, and in {quoted(base.id)} it is {list(weight.shape)}: the "
            f"adapter is of another base",
        )
    stored = _stored_dtype(base, weight)
    return MergedWeight(weight, stored, new, factors, module.scale, module.magnitude)


def _stored_dtype(base: ModelSource, weight: LogicalWeight) -> str:
    if weight.quantized:
        return ""
    if weight.method not in _MERGED_DTYPES:
        raise ModelError(
            f"{quoted(weight.name)} of {quoted(base.id)} is stored as {weight.method}, into which "
            f"qtui merges no adapter: give a base of 16 or 32 bits."
        )
    return weight.method if weight.method in _NARROW else ""


def _twice(adapter: Adapter, name: str) -> ModelError:
    words = f"changes {quoted(name)} under two names: which counts is unknown"
    return fault(adapter.source, words)


def _no_such_module(
    base: ModelSource, adapter: Adapter, name: str, weights: list[str]
) -> ModelError:
    tied = ""
    if name.rpartition(".")[2] in ("lm_head", "embed_out"):
        tied = ". Its head may be tied to its embedding: then the merged model needs one of its own"
    return fault(
        adapter.source,
        f"changes {quoted(name)}, and {quoted(base.id)} has no weight of that name; it has "
        f"{listed(weights)}{tied}",
    )
