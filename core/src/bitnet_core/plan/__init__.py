"""The plan: weights on a device, scratch memory, and layers turned into launches."""
