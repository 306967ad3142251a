"""The choice of a kernel's variant and tile: queries, tables, and the results of `bitnet tune`."""
