"""Hugging Face folders: config.json, safetensors, weights."""
