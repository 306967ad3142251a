"""One kernel per file: file name = function name = catalogue name.

A kernel gets its operands as flat numpy arrays by binding name, the parameters, and the constants, and writes its
outputs in place; `bitnet_hal.kernels.catalogue` says what it computes, and `bitnet_hal.reference` shows it. Put
your own language in their place and let `device.compile` build it.
"""
