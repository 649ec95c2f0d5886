"""The fields that an export writes of a tensor and of a scheme on it, in order."""

#: Of a tensor, and of its error under a scheme; the names are those of the fields.
STATISTICS = (
    "count", "nan", "inf", "zeros", "min", "max", "mean", "std", "absmax", "kurtosis",
)  # fmt: skip
ERRORS = (
    "bits_per_parameter", "bytes", "saturated", "sqnr_db", "gaussian_sqnr_db", "relative_mse",
    "gaussian_relative_mse", "max_abs_error", "overflowed", "outlier_columns",
)  # fmt: skip
