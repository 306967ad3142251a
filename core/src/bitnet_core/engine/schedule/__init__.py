"""Scheduling: admission, composition of steps, multi-step decoding, results of steps."""
