"""Everything that one reading of a tensor can compute, with or without a scheme: errors,
statistics, maps, columns, outliers."""
