"""What a reading of a tensor can find out under a scheme: errors, statistics, maps, columns,
outliers."""
