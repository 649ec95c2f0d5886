"""What LLM.int8() decomposition keeps, costs and gains, threshold by threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from qtui_core.dataclass import dataclass
from qtui_core.quant.coding.decomposition import decompose
from qtui_core.quant.measure import ErrorScan
from qtui_core.quant.scan.columns import ColumnScan
from qtui_core.quant.scan.reducer import read
from qtui_core.quant.segments.elements import TensorLike, elements_of
from qtui_core.quant.segments.layout import layout_of
from qtui_core.quant.segments.parallel import fractions_of, thread_count
from qtui_core.quant.segments.process import ExtentScan, Plan, first_passes, make_coder
from qtui_core.schemes.scheme import Scheme


@dataclass(frozen=True)
class SweepPoint:
    """A scheme with one outlier threshold, applied to a tensor.

    Attributes:
        threshold: in the unit of the tensor.
        columns: how many columns are kept in 16 bits.
        bits_per_parameter, bytes: storage, including kept columns and scales.
        relative_mse, sqnr_db: as in `ErrorReport`.
    """

    threshold: float
    columns: int
    bits_per_parameter: float
    bytes: int
    relative_mse: float | None
    sqnr_db: float | None


def decomposition_sweep(
    x: TensorLike,
    scheme: Scheme,
    thresholds: Sequence[float],
    *,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    threads: int | None = None,
) -> tuple[SweepPoint, ...]:
    """The result of `measure` for the scheme with each outlier threshold, in the order of
    `thresholds`.

    Reads the tensor twice, or three times with a scale per tensor, however many thresholds there
    are. Thresholds that keep the same columns are computed once.

    Raises:
        Cancelled: `cancelled()` was true.
        UsageError: `x` is not a tensor of real numbers, a threshold is not above 0, or the scheme
            has no outlier columns.
    """
    schemes = [replace(scheme, outlier_threshold=float(t)) for t in thresholds]
    if not schemes:
        return ()
    elements = elements_of(x)
    count = thread_count(elements.count, threads)
    reads = 1 + first_passes(schemes[0], elements.shape)
    advance = fractions_of(progress, reads * elements.count)
    columns = ColumnScan()
    read(elements, [columns], threads=count, advance=advance, cancelled=cancelled)
    absmax = columns.result().absmax
    layout = layout_of(scheme.granularity, elements.shape)
    by_what: dict[tuple[int, float], Plan] = {}
    keys = []
    for one in schemes:
        assert one.outlier_threshold is not None
        found = decompose(one.granularity, one.outlier_threshold, absmax)
        kept = 0 if found is None else int(found.columns.size)
        which = one.outlier_threshold if found is not None and found.by_element else 0.0
        keys.append((kept, which))
        by_what.setdefault(keys[-1], Plan(one, make_coder(one), layout, decomposition=found))
    plans = list(by_what.values())
    if reads > 2:
        extents = [ExtentScan(plan) for plan in plans]
        read(elements, extents, threads=count, advance=advance, cancelled=cancelled)
        plans = [each.result() for each in extents]

    found_errors = [ErrorScan(plan.scheme) for plan in plans]
    for each, plan in zip(found_errors, plans, strict=True):
        each.plans = (plan,)
    read(elements, found_errors, threads=count, advance=advance, cancelled=cancelled)
    reports = {key: each.result() for key, each in zip(by_what, found_errors, strict=True)}
    return tuple(
        SweepPoint(
            threshold=float(threshold),
            columns=reports[key].outlier_columns,
            bits_per_parameter=reports[key].bits_per_parameter,
            bytes=reports[key].bytes,
            relative_mse=reports[key].relative_mse,
            sqnr_db=reports[key].sqnr_db,
        )
        for threshold, key in zip(thresholds, keys, strict=True)
    )
