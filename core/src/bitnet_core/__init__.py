"""1.58-bit language models on any vendor's hardware."""
