"""One kernel per file: a function that computes workgroup (gx, gy) of the grid. They share `floats` and `tables`."""
