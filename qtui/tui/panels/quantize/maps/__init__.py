"""The Maps view: heatmaps of the tensor, and the histogram of its values."""
