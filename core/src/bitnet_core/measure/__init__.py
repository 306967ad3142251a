"""Measurements: read bandwidth, speed of a model, time of each kernel."""
