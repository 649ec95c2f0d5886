"""The views of a run: its curve, phases, parts, gap, loss, log and adapters."""
