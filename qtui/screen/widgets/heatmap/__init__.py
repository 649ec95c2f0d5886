"""The heatmap: its widget (`widget.py`), keys, cells, places, legend and colours (`ramps.py`)."""
