"""Quantizing a tensor into codes and scales, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.job import IDLE, Job
from qtui_core.quant.codebook import NestedScales, unpack_nibbles
from qtui_core.quant.coders import Codes, GroupScales
from qtui_core.quant.columns import Float16
from qtui_core.quant.elements import Elements, ModelExtent, Segment, TensorLike, elements_of
from qtui_core.quant.layout import (
    Columns,
    Float32,
    Int64,
    Whole,
    group_count,
    matrix_shape,
    scale_index,
    scale_shape,
)
from qtui_core.quant.plan import (
    Plan,
    SchemeReducer,
    decode,
    encode,
    prepare,
    scan,
    unread_plan,
)
from qtui_core.quant.reading import map_segments
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Family, Scheme


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A tensor as a scheme stores it.

    Attributes:
        scheme: what was done.
        shape: of the tensor that was quantized.
        codes: for nf4 and fp4 packed bytes as bitsandbytes keeps them, uint8
            `[ceil(n / 2), 1]`, the first of two codes in the high nibble. Otherwise one code
            an element in the shape of the tensor: int8 for symmetric integers, mxint8 and
            ternary, uint8 for asymmetric integers and the small floats, those of mx and nvfp4
            among them, uint16 for bf16 and fp16, uint32 (19 bits
            used) for tf32.
        scales: float32, what a level is multiplied by; the absmax of each block for nf4 and
            fp4, reconstructed from `nested` under double quantization. Shape as the
            granularity says, `[0]` for casts and empty tensors.
        zero_points: in the shape of `scales`, asymmetric integers only: uint8, or float32 in the
            tensor's unit.
        nested: the 8-bit scales of double quantization.
        scale_codes: uint8 in the shape of `scales`, where scales are stored in 8 bits: the
            E8M0 code of the mx formats (2^(code - 127)), the E4M3 code of nvfp4.
        tensor_scale: what the scales of nvfp4 are multiplied by, a float32 number; `scales` has
            the products.
        nonfinite: NaN and infinities in the tensor. They are left out of the scales; NaN has
            the NaN code of a float format that has one, else the code of zero; an infinity
            that of the format, else the outermost code of its sign.
        outlier_columns: int64 `[k]`, ascending: the columns of the tensor seen as a matrix that
            are kept in 16 bits, and
        outlier_values: float16 `[rows, k]`, their elements; both None without a threshold. Codes
            of these columns are those of zero.
    """

    scheme: Scheme
    shape: tuple[int, ...]
    codes: Codes
    scales: Float32
    zero_points: npt.NDArray[np.uint8] | Float32 | None
    nested: NestedScales | None
    nonfinite: int
    scale_codes: npt.NDArray[np.uint8] | None = None
    tensor_scale: float | None = None
    outlier_columns: Int64 | None = None
    outlier_values: Float16 | None = None

    @property
    def bits_per_parameter(self) -> float:
        """The bits of storage per element, including scales and zero points."""
        return bits_per_parameter(self.scheme, self.shape, self._kept)

    @property
    def nbytes(self) -> int:
        """The bytes of storage, with codes packed at their width."""
        return quantized_bytes(self.scheme, self.shape, self._kept)

    @property
    def _kept(self) -> int:
        return 0 if self.outlier_columns is None else int(self.outlier_columns.size)

    @property
    def unpacked_codes(self) -> Codes:
        """One code per element, in the shape of the tensor."""
        if self.scheme.family is not Family.CODEBOOK:
            return self.codes
        count = int(np.prod(self.shape, dtype=np.int64))
        return unpack_nibbles(self.codes, count).reshape(self.shape)

    def scale_at(self, row: int, column: int) -> tuple[float, float] | None:
        """The scale and the zero point (0 without one) of element [row, column] of the tensor seen
        as a matrix; None for a cast."""
        index = scale_index(self.scheme.granularity, self.shape, row, column)
        if index is None:
            return None
        zero_point = 0 if self.zero_points is None else self.zero_points.reshape(-1)[index].item()
        return float(self.scales.reshape(-1)[index]), zero_point

    def dequantize(self, *, out: Float32 | None = None, threads: int | None = None) -> Float32:
        """The values of the codes, float32 in the shape of the tensor. They are written to `out` if
        it is given, which is flat or of that shape and contiguous, and `out` is returned."""
        count = int(np.prod(self.shape, dtype=np.int64))
        target = np.empty(count, np.float32) if out is None else out.reshape(-1)
        plan = unread_plan(self.scheme, self.shape)
        codes, scales = self.codes.reshape(-1), self.scales.reshape(-1)
        zero_points = None if self.zero_points is None else self.zero_points.reshape(-1)

        def work(segment: Segment) -> None:
            groups = _group_slice(plan, segment)
            own = GroupScales(scales[groups], None if zero_points is None else zero_points[groups])
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                decode(plan, codes[_code_slice(plan, segment)], own, segment.raw)

        segments = elements_of(target).segments(plan.multiple)
        for _ in map_segments(work, segments, count, Job(threads=threads)):
            pass
        if self.outlier_columns is not None and self.outlier_values is not None and count:
            matrix = target.reshape(matrix_shape(self.shape))
            matrix[:, self.outlier_columns] = self.outlier_values
        return target.reshape(self.shape)


class CodeScan(SchemeReducer[int]):
    """The codes and scales of a tensor under a scheme, all of them kept in memory."""

    def begin(self, elements: Elements) -> None:
        scheme, plan = self.plan.scheme, self.plan
        coder = plan.coder
        self._shape, self._nonfinite = elements.shape, 0
        self._codes = np.empty(plan.code_count(elements.count), coder.code_dtype)
        shape = scale_shape(scheme.granularity, elements.shape)
        self._scales = np.empty(shape, np.float32)
        self._zero_points: npt.NDArray[Any] | None = None
        if not scheme.symmetric:
            self._zero_points = np.empty(shape, np.float32 if scheme.float_zero_point else np.uint8)
        self._outlier_columns: Int64 | None = None
        self._outlier_values: Float16 | None = None
        if scheme.outlier_threshold is not None:
            kept = plan.decomposition
            self._outlier_columns = np.empty(0, np.int64) if kept is None else kept.columns
            height = elements.matrix[0]
            self._outlier_values = np.empty((height, self._outlier_columns.size), np.float16)
        self._nested: NestedScales | None = None
        if scheme.double_quantization:
            self._nested = NestedScales(
                np.empty(self._scales.size, np.uint8),
                np.empty(-(-self._scales.size // scheme.nested_block), np.float32),
                plan.offset or 0.0,
                scheme.nested_block,
            )
        self._scale_codes = np.empty(shape, np.uint8) if coder.scale_format is not None else None
        if plan.fixed is not None:
            self._keep_scales(slice(None), plan.fixed, plan.fixed.scale)

    def take(self, segment: Segment) -> int:
        """Writes the codes and scales of a segment to their places. Returns how many elements are
        not finite."""
        plan, codes = self.plan, self._codes[_code_slice(self.plan, segment)]
        prepared = prepare(plan, segment)
        encode(plan, prepared, codes)
        if plan.decomposition is not None and self._outlier_values is not None:
            plan.decomposition.collect(self._outlier_values, prepared.values, segment.start)
        if plan.fixed is None and self._scales.size:
            groups = _group_slice(plan, segment)
            self._keep_scales(groups, prepared.scales, prepared.decoding_scales.scale)
            if self._nested is not None and prepared.nested is not None:
                self._nested.codes[groups] = prepared.nested.codes
                first = groups.start // plan.scheme.nested_block
                blocks = slice(first, first + prepared.nested.absmax.size)
                self._nested.absmax[blocks] = prepared.nested.absmax
        return 0 if prepared.nonfinite is None else int(np.count_nonzero(prepared.nonfinite))

    def _keep_scales(self, groups: slice, scales: GroupScales, decoding: Float32) -> None:
        self._scales.reshape(-1)[groups] = decoding
        if self._zero_points is not None and scales.zero_point is not None:
            self._zero_points.reshape(-1)[groups] = scales.zero_point
        if self._scale_codes is not None and scales.code is not None:
            self._scale_codes.reshape(-1)[groups] = scales.code

    def add(self, part: int) -> None:
        self._nonfinite += part

    def result(self) -> QuantizedTensor:
        scheme, packed = self.scheme, self.plan.packed
        return QuantizedTensor(
            scheme=scheme,
            shape=self._shape,
            codes=self._codes.reshape(-1, 1) if packed else self._codes.reshape(self._shape),
            scales=self._scales,
            zero_points=self._zero_points,
            nested=self._nested,
            nonfinite=self._nonfinite,
            scale_codes=self._scale_codes,
            tensor_scale=self.plan.coder.tensor_scale,
            outlier_columns=self._outlier_columns,
            outlier_values=self._outlier_values,
        )


def quantize(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    job: Job = IDLE,
) -> QuantizedTensor:
    """Codes and scales of a tensor under a scheme.

    Args:
        x: a numpy array or torch tensor of real numbers, any shape, or an object with
            `.shape` and `.rows(start, stop)`. Converted to float32.
        scheme: what to do.
        model_absmax: with granularity `model`, the largest magnitude of the model, or its
            (min, max); without it the tensor is the whole model.
        job: see `Job`.

    Raises:
        Cancelled: the job was cancelled.
        UsageError: `x` is not a tensor of real numbers.
    """
    reducer = CodeScan(scheme)
    scan(x, [reducer], model_absmax=model_absmax, job=job)
    return reducer.result()


def _code_slice(plan: Plan, segment: Segment) -> slice:
    # Segments start at even elements, so the codes before one are a whole number of bytes.
    return slice(plan.code_count(segment.start), plan.code_count(segment.start + segment.size))


def _group_slice(plan: Plan, segment: Segment) -> slice:
    if isinstance(plan.layout, Whole | Columns):
        return slice(0, None)
    first = group_count(plan.layout, segment.start) if segment.start else 0
    return slice(first, first + group_count(plan.layout, segment.size))
