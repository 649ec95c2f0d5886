"""The views of a run: its curve, phases, parts, gap, loss, ranges, log and adapters."""
