"""A generation request, the rows it samples from, its reasoning."""
