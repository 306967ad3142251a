"""A bitnet backend to learn from: the HAL on numba."""
