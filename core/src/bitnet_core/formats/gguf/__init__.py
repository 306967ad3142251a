"""GGUF files: container, tensor types, configuration, weights."""
