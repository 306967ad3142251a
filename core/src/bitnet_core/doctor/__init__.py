"""Checks of this machine: faults, their causes, and remedies."""
