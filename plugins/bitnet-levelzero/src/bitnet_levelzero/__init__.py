"""The Level Zero backend of bitnet."""
