"""The checks of each library: functions that run both sides of a convention on its numbers. Rows of
the catalogue name them. Each module imports its library."""
