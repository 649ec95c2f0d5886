"""The fields that exports write, in order."""

#: Fields of the statistics of a tensor, and of ErrorReport.
STATISTICS = (
    "count", "nan", "inf", "zeros", "min", "max", "mean", "std", "absmax", "kurtosis",
)  # fmt: skip
ERRORS = (
    "bits_per_parameter", "bytes", "saturated", "sqnr_db", "gaussian_sqnr_db", "relative_mse",
    "gaussian_relative_mse", "max_abs_error", "outlier_columns",
)  # fmt: skip
