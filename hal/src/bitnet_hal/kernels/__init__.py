"""The kernel catalogue: names, formulas, bindings, parameters and grids."""
