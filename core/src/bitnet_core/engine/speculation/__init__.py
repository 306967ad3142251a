"""Speculative decoding: drafters, and the choice of the number of draft tokens."""
