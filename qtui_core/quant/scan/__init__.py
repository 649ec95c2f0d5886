"""What is read off a tensor under a scheme: errors, statistics, maps, columns, outliers."""
