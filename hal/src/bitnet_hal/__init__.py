"""The contract between bitnet and its backends.

`bitnet_hal.plugin` has what most plugins are made of, by one import. This package itself imports nothing.
"""
