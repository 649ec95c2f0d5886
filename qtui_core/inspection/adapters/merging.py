"""The weights of a base with an adapter merged into them.

W' = W + s·B·A. The product B·A is summed in float64 and rounded to float32 once (peft's order of
summation is that of its BLAS, so its last bit may differ), multiplied by s in float32, and added to
W in float32; the sum is rounded once, to the dtype in which the base stores W. So does peft's
`merge_and_unload`: it loads adapters as float32, and torch adds a float32 tensor to one of 16 bits
in float32. DoRA scales the sum to m / ‖W + s·B·A‖, a norm for each output
(`DoraLinearVariant.merge_unsafe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.reading import Adapter, LoraModule, fault, left_to_peft
from qtui_core.inspection.comparison.pairing import core_name
from qtui_core.inspection.recipes.recipe import RecipeTensor
from qtui_core.inspection.sample import Strip, read_strips
from qtui_core.inspection.sentences import not_finite
from qtui_core.models import ModelSource, Role, TensorInfo
from qtui_core.models.files.arrays import Float32, RowReader
from qtui_core.models.quoting import listed, quoted
from qtui_core.packed.gguf_names import is_gguf

#: Elements of an update that are computed at once.
_CHUNK = 1 << 18
#: The dtypes to which a sum is rounded. A sum of F64 weights stays float32.
_NARROW = ("BF16", "F16")

#: Merges into rows of a base, float32 `[rows, columns]`; `rounded` to the stored dtype or not.
#: Raises ModelError if a value is not finite.
Merging = Callable[[Float32, bool], Float32]


@dataclass(frozen=True, eq=False)
class MergedWeight:
    """A weight of the base that an adapter changes, which is `info` there.

    Attributes:
        update: what is added; that of a weight stored as [in, out] is transposed. None for a weight
            that the adapter replaces, by the rows `new`.
    """

    info: TensorInfo
    update: LoraModule | None = None
    new: RowReader | None = None

    @property
    def stored(self) -> str:
        """What the sum is rounded to; "" if it stays float32."""
        return self.info.dtype if self.info.dtype in _NARROW else ""

    def merging(self, strips: Sequence[Strip]) -> Merging:
        """What merges into the given rows of any base: the stored one, or one as it was trained.
        The update is computed once."""
        update, lengths, new = None, None, None
        if self.update is not None:
            update = _product(self.update, strips)
            if self.update.magnitude is not None:
                lengths = np.concatenate([self.update.magnitude[slice(*strip)] for strip in strips])
        elif self.new is not None:
            new = read_strips(self.new, strips)

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
            if not (finite := np.isfinite(values)).all():
                where = f"in {quoted(self.info.name)} with the adapter merged"
                if self.stored:
                    where += f" and stored in {self.stored}"
                raise ModelError(f"{not_finite(int((~finite).sum()), where)}.")
            return values

        return merged


def _product(module: LoraModule, strips: Sequence[Strip]) -> Float32:
    """The rows of s·B·A, float32 `[rows, columns]`."""
    left, right = module.b.astype(np.float64), module.a.astype(np.float64)
    update = np.empty((sum(stop - start for start, stop in strips), right.shape[1]), np.float32)
    height, at = max(1, _CHUNK // right.shape[1]), 0
    with np.errstate(over="ignore"):
        for start, stop in strips:
            for first in range(start, stop, height):
                last = min(stop, first + height)
                update[at : at + last - first] = left[first:last] @ right
                at += last - first
        update *= np.float32(module.scale)
    return update


def round_stored(values: Float32, stored: str) -> Float32:
    """Values rounded to the nearest of BF16 or F16, ties to even, beyond the largest infinite; as
    they are for other dtypes."""
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

    @property
    def notes(self) -> tuple[str, ...]:
        none = "the base has no tensor of that name, so nothing is said of it"
        return (f"{listed(list(self.added))} of the adapter: {none}.",) if self.added else ()


def merge_adapter(base: ModelSource, adapter: Adapter) -> Merge:
    """Finds the weight of the base for each module of an adapter, and what it becomes.

    Raises ModelError if the adapter is not of this base: a module that the base does not have, or a
    weight of another shape; or if the base is quantized already.
    """
    if base.quantization is not None or is_gguf(base):
        raise ModelError(
            f"{quoted(base.id)} is quantized already, and an adapter is merged into the weights as "
            f"they were before: give those, with --trained-on for the scheme of the training."
        )
    infos = {i.name: i for i in base.tensors.values() if i.role is Role.VALUES}
    cores: dict[str, list[str]] = {}
    for name in infos:
        cores.setdefault(core_name(name), []).append(name)
    merged: dict[str, MergedWeight] = {}
    added: list[str] = []
    changes: dict[str, LoraModule | str] = {**adapter.replaced}
    changes |= {f"{name}.weight": module for name, module in adapter.modules.items()}
    for whole, change in changes.items():
        alike = [whole] if whole in infos else cores.get(core_name(whole), [])
        if len(alike) == 1:
            if alike[0] in merged:
                raise fault(adapter.source, f"changes {quoted(alike[0])} twice: which one counts?")
            merged[alike[0]] = _merged(base, adapter, infos[alike[0]], change)
        elif isinstance(change, str):
            added.append(whole)
        else:
            raise fault(
                adapter.source,
                f"changes {quoted(whole)}, and {quoted(base.id)} has no weight of that name (a "
                f"head may be tied to its embedding); it has {listed(list(infos))}",
            )
    return Merge(base, adapter, {n: merged[n] for n in infos if n in merged}, tuple(added))


def _merged(
    base: ModelSource, adapter: Adapter, info: TensorInfo, change: LoraModule | str
) -> MergedWeight:
    if info.dtype not in ("F32", "F64", *_NARROW):
        raise ModelError(
            f"{quoted(info.name)} of {quoted(base.id)} is stored as {info.dtype}, into which qtui "
            f"merges no adapter: give a base of 16 or 32 bits."
        )
    if isinstance(change, str):
        shape, how = adapter.source.tensors[change].shape, "replaces"
        merged = MergedWeight(info, new=RowReader(adapter.source, change))
    else:
        shape, how = (change.b.shape[0], change.a.shape[1]), "changes"
        # A Conv1D of GPT-2 stores [in, out]; of a square one the adapter says so.
        square = shape[0] == shape[1]
        if adapter.settings.fan_in_fan_out if square else info.shape == shape[::-1]:
            if change.magnitude is not None:
                raise left_to_peft(adapter.source, f"is a DoRA of {quoted(change.name)}, a Conv1D")
            change, shape = replace(change, a=change.b.T, b=change.a.T), shape[::-1]
        merged = MergedWeight(info, change)
    if info.shape != shape:
        raise fault(
            adapter.source,
            f"{how} {quoted(info.name)} by {list(shape)}, and in {quoted(base.id)} it is "
            f"{list(info.shape)}: the adapter is of another base, or of one that was resized",
        )
    return merged
