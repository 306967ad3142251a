"""Kernel sources that bitnet-rocm compiles too, and their tunings."""
