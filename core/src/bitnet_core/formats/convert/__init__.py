"""Conversions between model files."""
