"""Whether the installed libraries follow the conventions this library follows."""
