"""The model: shape, weights in host memory, rotary table, and the interface common to all model files."""
