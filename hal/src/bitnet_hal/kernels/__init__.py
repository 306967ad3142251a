"""The kernel catalogue: names, bindings, parameters, grids and meanings."""
