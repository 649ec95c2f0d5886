"""The JSON of `qtui inspect A --against B`."""

from __future__ import annotations

from typing import Any

from qtui.report.inspection.data import model_data
from qtui_core.inspection.against.report import Comparison, PairReport, WorstMap
from qtui_core.packed import LogicalWeight


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """`model` is A as in every inspection; `against` is B and what it made of A. Weights come
    worst first; `plain_rounding` is null where no scheme rounds to B's levels."""
    plain = comparison.rounded_relative_mse
    return {
        "model": model_data(comparison.a),
        "sample": comparison.sample,
        "against": {
            "model": model_data(comparison.b),
            "notes": list(comparison.notes),
            "relative_mse": comparison.relative_mse,
            "sqnr_db": comparison.sqnr_db,
            "bits_per_parameter": comparison.bits_b,
            "model_bits_per_parameter": comparison.bits_a,
            "plain_rounding": None
            if plain is None
            else {
                "tensors": comparison.rounded,
                "relative_mse": plain,
                "stored_relative_mse": comparison.stored_relative_mse,
                "gain_db": comparison.gain_db,
            },
            "identical": comparison.identical,
            "tensors": [_pair_data(r) for r in comparison.pairs],
            "only_in_model": list(comparison.only_a),
            "only_in_against": list(comparison.only_b),
            "other_shapes": [
                {"name": n, "shape": list(a), "against_shape": list(b)}
                for n, a, b in comparison.shapes
            ],
            "not_read": [{"name": n, "reason": reason} for n, reason in comparison.unread],
            "worst_map": _map_data(comparison.worst_map),
        },
    }


def _pair_data(report: PairReport) -> dict[str, Any]:
    pair, found = report.pair, report.difference
    plain = report.scheme_relative_mse
    return {
        "name": pair.name,
        "shape": list(pair.info.shape),
        "read_as": pair.info.reading.value,
        "matrix": list(pair.info.matrix),
        "parameters": pair.info.elements,
        "sampled_parameters": found.count,
        "stored": _stored_data(pair.a),
        "against_stored": _stored_data(pair.b),
        "identical": found.identical,
        "nonfinite": found.nonfinite,
        "became_nonfinite": found.lost,
        "mse": found.mse,
        "relative_mse": found.relative_mse,
        "sqnr_db": found.sqnr_db,
        "max_abs_error": found.max_abs_error,
        "max_abs_error_index": found.max_abs_error_index and list(found.max_abs_error_index),
        "mean_shift": found.mean_shift,
        "cosine": found.cosine,
        "plain_rounding": None
        if plain is None
        else {
            "scheme": report.scheme,
            "relative_mse": plain,
            "sqnr_db": report.scheme_sqnr_db,
        },
    }


def _stored_data(weight: LogicalWeight) -> dict[str, Any]:
    return {
        "tensor": weight.stored,
        "method": weight.method,
        "bytes": weight.nbytes,
        "bits_per_parameter": weight.bits_per_parameter,
    }


def _map_data(worst: WorstMap | None) -> dict[str, Any] | None:
    if worst is None:
        return None
    return {
        "tensor": worst.name,
        "rows": [list(span) for span in worst.map.rows],
        "column_edges": list(worst.map.column_edges),
        "max_abs_error": [[float(c) for c in cells] for cells in worst.map.cells],
    }
