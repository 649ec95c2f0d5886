"""The JSON of `qtui inspect`: raw numbers under the keys that scripts rely on."""

from __future__ import annotations

from typing import Any

from qtui_core.inspection import Census, Inspection, TensorReport


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
            }
            for s in inspection.schemes
        ],
        "memory": None,
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
            }
            for e in tensor.errors
        ],
    }
