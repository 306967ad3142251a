"""Ternary encodings of model files: a module per family decodes to TernaryWeight, and encodes where we write it."""
