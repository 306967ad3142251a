"""Ternary encodings of model files: one module per family decodes to TernaryWeight, and encodes the types that we
write."""
