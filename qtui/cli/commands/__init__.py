"""The commands of qtui, a file for each: options, the work to do, and the report to write."""
