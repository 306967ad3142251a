"""Detection of a file's I2_S layout."""
