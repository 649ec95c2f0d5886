"""The library under qtui: number formats, models, quantization, memory. It does not depend on the
interface."""
