"""Native SIMD CPU backend for bitnet."""

__version__ = "0.1.0"
