"""The Layers view: the SQNR of every tensor under the active scheme, by layer and module."""
