"""The choice of a kernel's variant and tile: queries, tables, and what `bitnet tune` measured."""
