"""One kernel per file; the function is one workgroup (gx, gy) of the grid. `floats` and `tables` are shared by them."""
