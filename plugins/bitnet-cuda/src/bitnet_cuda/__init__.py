"""The CUDA backend of bitnet."""
