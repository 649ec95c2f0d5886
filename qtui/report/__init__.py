"""Reports: one document, four faces. Build a `Document`, then give it to `render`."""

from qtui.report.document import Column, Document, Facts, HeatMap, Section, Table

__all__ = ["Column", "Document", "Facts", "HeatMap", "Section", "Table"]
