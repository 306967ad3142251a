"""A backend of bitnet."""
