"""How a candidate changes the weights of the original: the values of each tensor, and the bytes of
the model. Needs numpy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.files import without_waiting
from qtui_core.inspection.comparison.pairing import Pair, open_pair, pair_weights
from qtui_core.inspection.inspect import is_quantizable, refuse_model_scale
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.quoting import quoted
from qtui_core.quant import quantize, quantized_bytes
from qtui_core.quant.elements import Float32, RowSource
from qtui_core.schemes.scheme import Scheme

#: The largest file with an assignment: one of a hundred thousand tensors takes about 10 MB.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredWeight:
    """A weight of the running model: its tensor, with the name in the checkpoint if that has it,
    and what reads its values."""

    info: TensorInfo
    rows: RowSource

    def values(self) -> Float32:
        """All values as stored, float32 in the tensor's shape."""
        return self.rows.rows(0, self.rows.shape[0]).reshape(self.info.shape)


class WeightChange:
    """A change of the weights of a model; `name` is that of its row, `alone` are names of tensors
    of which each is changed in a way of its own."""

    def __init__(self, name: str, source: ModelSource, alone: Collection[str] = ()) -> None:
        self.name, self.source, self.alone = name, source, alone

    def values(self, weight: StoredWeight) -> Float32:
        """The values of a weight under the change."""
        return weight.values()

    def nbytes(self) -> int:
        """Bytes of the whole model with the change. For a scheme that keeps outlier columns, they
        are known only after all weights were read."""
        return self.source.nbytes

    def changes_inputs(self, weight: StoredWeight) -> bool:
        """Whether a candidate that quantizes activations quantizes the inputs of the layer with
        this weight."""
        return is_quantizable(weight.info)


class QuantizedWeights(WeightChange):
    """Quantized weights. `scheme_of` returns the scheme of a tensor, None if it stays as stored."""

    def __init__(
        self,
        name: str,
        source: ModelSource,
        scheme_of: Callable[[TensorInfo], Scheme | None],
        alone: Collection[str] = (),
    ) -> None:
        super().__init__(name, source, alone)
        self._scheme_of = scheme_of
        self._columns: dict[str, int] = {}

    def values(self, weight: StoredWeight) -> Float32:
        scheme = self._scheme_of(weight.info)
        if scheme is None:
            return super().values(weight)
        quantized = quantize(weight.rows, scheme)
        if quantized.outlier_columns is not None:
            self._columns[weight.info.name] = int(quantized.outlier_columns.size)
        return quantized.dequantize().reshape(weight.info.shape)

    def nbytes(self) -> int:
        total = 0
        for name, info in self.source.tensors.items():
            scheme = self._scheme_of(info)
            columns = self._columns.get(name, 0)
            total += quantized_bytes(scheme, info.matrix, columns) if scheme else info.nbytes
        return total

    def changes_inputs(self, weight: StoredWeight) -> bool:
        return self._scheme_of(weight.info) is not None


class OtherCheckpoint(WeightChange):
    """The weights of another checkpoint of the same model, decoded if they are packed."""

    def __init__(self, source: ModelSource, other: ModelSource) -> None:
        super().__init__(other.id, source)
        self._other = other
        pairing = pair_weights(source, other)
        self._pairs: dict[str, Pair] = {pair.a.name: pair for pair in pairing.pairs}
        if pairing.shapes:
            name, mine, theirs = pairing.shapes[0]
            raise UsageError(
                f"{quoted(name)} is {mine} in {source.id} and {theirs} in {other.id}: --against "
                f"takes a checkpoint of the same model."
            )
        self.missing, self.notes = pairing.only_a, pairing.notes

    def values(self, weight: StoredWeight) -> Float32:
        pair = self._pairs.get(weight.info.name)
        if pair is None:
            return super().values(weight)
        _, rows = open_pair(self.source, self._other, pair)
        return rows.rows(0, rows.shape[0]).reshape(weight.info.shape)

    def nbytes(self) -> int:
        return self._other.nbytes

    def changes_inputs(self, weight: StoredWeight) -> bool:
        pair = self._pairs.get(weight.info.name)
        return pair is not None and pair.b.quantized


def uniform(scheme: Scheme, source: ModelSource, keep: Sequence[str] = ()) -> QuantizedWeights:
    """One scheme for every matrix, as in `qtui inspect`, except those whose names match a pattern
    of `keep`. Raises UsageError if a pattern matches nothing, or if no matrix is left."""
    matrices = [info.name for info in source.tensors.values() if is_quantizable(info)]
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in matrices):
            like = f"Names look like {matrices[len(matrices) // 2]!r}." if matrices else ""
            raise UsageError(f"--keep {pattern!r} matches no matrix of {source.id}. {like}")

    def scheme_of(info: TensorInfo) -> Scheme | None:
        kept = any(fnmatchcase(info.name, pattern) for pattern in keep)
        return scheme if is_quantizable(info) and not kept else None

    if not any(map(scheme_of, source.tensors.values())):
        already = " (it is quantized already)" if source.quantization else ""
        raise UsageError(f"No matrix of {source.id} is left for {scheme} to quantize{already}.")
    return QuantizedWeights(str(scheme), source, scheme_of)


def read_assignment(path: str) -> dict[str, Scheme | None]:
    """A scheme for each tensor, None for one that stays as stored, from a JSON file: a report of
    `qtui inspect --sensitivity`, or an object of names and schemes.

    Raises UsageError if the file cannot be read or is neither.
    """
    try:
        with open(os.path.expanduser(path), "rb", opener=without_waiting) as file:
            read = json.loads(file.read(_MOST_BYTES))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"The assignment {path!r} cannot be read: {reason}.") from error
    except (ValueError, RecursionError):
        read = None
    report = read.get("sensitivity") if isinstance(read, dict) else None
    if isinstance(report, dict):
        rows = report.get("assignment")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        read = {str(row.get("tensor")): row.get("scheme") for row in rows}
    known = isinstance(read, dict) and all(isinstance(s, str | None) for s in read.values())
    if not (known and read):
        raise UsageError(
            f"{path!r} has no assignment of schemes to tensors: write one with `qtui inspect MODEL "
            f"--sensitivity --json -o FILE`, or an object of tensor names and schemes."
        )
    return {name: None if text is None else Scheme.parse(text) for name, text in read.items()}


def assigned(
    name: str, schemes: Mapping[str, Scheme | None], source: ModelSource
) -> QuantizedWeights:
    """The change by an assignment. Raises UsageError if it names something that is not a matrix of
    the model, or a scheme with one scale for the whole model."""
    refuse_model_scale(scheme for scheme in schemes.values() if scheme is not None)
    for tensor, scheme in schemes.items():
        info = source.tensors.get(tensor)
        if info is None or (scheme is not None and not is_quantizable(info)):
            raise UsageError(
                f"The assignment names {quoted(tensor)}, which is no matrix of plain numbers of "
                f"{source.id}: is it of another model?"
            )
    return QuantizedWeights(name, source, lambda info: schemes.get(info.name), alone=schemes)
