"""Scheduling: admission, step composition, multi-step decoding, results of steps."""
