"""The views of a run: curve, phases, components, gap, loss, ranges, log and adapters."""
