"""Model files: readers, writers and conversions."""
