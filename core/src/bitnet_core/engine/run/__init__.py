"""Execution of scheduled batches on devices."""
