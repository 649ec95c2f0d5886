"""The operations of a step on the memories and units of a GPU: what limits each, and a lower bound
on its time (the Hardware panel)."""
