"""WebGPU backend of bitnet."""
