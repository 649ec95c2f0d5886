"""The JSON of `qtui inspect`: raw numbers under the keys that scripts rely on."""

from __future__ import annotations

from typing import Any

from qtui_core.inspection import Census, Inspection, TensorReport
from qtui_core.inspection.report import Completeness


def inspection_data(inspection: Inspection) -> dict[str, Any]:
    """The JSON of `inspect`; `memory` is null until an estimate is part of the report."""
    return {
        "model": model_data(inspection.census),
        "sample": inspection.sample,
        "tensors": [_tensor_data(t) for t in inspection.tensors],
        "schemes": [
            {
                "scheme": s.scheme,
                "bits_per_parameter": s.bits_per_parameter,
                "bytes": s.nbytes,
                "relative_mse": s.relative_mse,
                "sqnr_db": s.sqnr_db,
                "gaussian_sqnr_db": s.gaussian_sqnr_db,
                "worst_tensor": s.worst_tensor,
                "saturated": s.saturated,
                "overflowed": s.overflowed,
            }
            for s in inspection.schemes
        ],
        "memory": None,
        "completeness": _completeness_data(inspection.completeness),
    }


def model_data(census: Census) -> dict[str, Any]:
    """What a model is made of."""
    return {
        "id": census.model,
        "source": census.origin,
        "location": census.location,
        "architecture": census.architecture,
        "parameters": census.parameters,
        "bytes": census.nbytes,
        "dtypes": {
            d.dtype: {"tensors": d.tensors, "parameters": d.parameters, "bytes": d.nbytes}
            for d in census.dtypes
        },
        "quantization": census.quantization,
    }


def _tensor_data(tensor: TensorReport) -> dict[str, Any]:
    info, stats, outliers = tensor.info, tensor.statistics, tensor.outliers
    return {
        "name": info.name,
        "shape": list(info.shape),
        "read_as": info.reading.value,
        "matrix": list(info.matrix),
        "dtype": info.dtype,
        "parameters": info.parameters,
        "bytes": info.nbytes,
        "sampled_parameters": tensor.sampled_parameters,
        "statistics": stats
        and {
            "min": stats.min,
            "max": stats.max,
            "mean": stats.mean,
            "std": stats.std,
            "absmax": stats.absmax,
            "kurtosis": stats.kurtosis,
            "zeros": stats.zeros,
            "nan": stats.nan,
            "inf": stats.inf,
        },
        "outliers": outliers
        and {
            "count_6sigma": outliers.count,
            "columns": [{"column": c.column, "count": c.count} for c in outliers.columns],
            "top": [
                {"row": o.row, "column": o.column, "value": o.value, "sigmas": o.sigmas}
                for o in outliers.top
            ],
        },
        "errors": [
            {
                "scheme": str(e.scheme),
                "bits_per_parameter": e.bits_per_parameter,
                "mse": e.mse,
                "relative_mse": e.relative_mse,
                "sqnr_db": e.sqnr_db,
                "max_abs_error": e.max_abs_error,
                "gaussian_relative_mse": e.gaussian_relative_mse,
                "nonfinite": e.nonfinite,
                "saturated": e.saturated,
                "overflowed": e.overflowed,
            }
            for e in tensor.errors
        ],
    }


def _completeness_data(found: Completeness | None) -> dict[str, Any] | None:
    """The tensors beside those that config.json implies; null without a model to check."""
    if found is None:
        return None
    return {
        "checked": not found.unchecked,
        "not_checked_because": found.unchecked or None,
        "architecture": found.architecture,
        "partly_of": found.partly_of or None,
        "implied": found.implied,
        "missing": list(found.missing),
        "misshapen": [
            {"name": m.name, "shape": list(m.shape), "implied_shape": list(m.implied)}
            for m in found.misshapen
        ],
        "unexpected": list(found.unexpected),
    }
