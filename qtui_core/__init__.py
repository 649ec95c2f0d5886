"""The library under qtui: number formats, models, quantization. Knows no interface."""
