"""ROCm backend of bitnet."""
