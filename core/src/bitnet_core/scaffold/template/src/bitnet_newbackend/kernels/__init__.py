"""One kernel per file: file name = function name = catalogue name.

At first each is the reference implementation, a function of flat numpy arrays by binding name, parameters and constants
that writes its outputs in place. `bitnet kernels NAME` describes a kernel, `bitnet_hal.reference` has its code. Replace
them one by one by sources in your own language, which `_compile` in `device.py` builds.
"""
