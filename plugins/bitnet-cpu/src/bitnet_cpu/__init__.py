"""Native SIMD CPU backend for bitnet."""

__version__ = "0.2.0"
