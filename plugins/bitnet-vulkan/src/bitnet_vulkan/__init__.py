"""Vulkan backend of bitnet."""
