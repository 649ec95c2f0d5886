"""The pictures of experiments, drawn once: in cells for a terminal, and as SVG."""
