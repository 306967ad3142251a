"""The command line `bitnet`."""
