"""CUDA backend of bitnet."""
