"""Building programs, and keeping their binaries on disk."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import pyopencl as cl
from bitnet_hal.plugin import ProgramCache

from bitnet_opencl.errors import BACKEND, checked


class Compiler:
    """Programs of one device.

    The cache is used with PoCL too, which keeps programs of its own: it reads each source again before it looks there,
    which takes 70 ms of processor time on a 2.5 GHz Xeon; a binary takes 4 ms.
    """

    def __init__(self, context: cl.Context, device: cl.Device, cache: ProgramCache | None = None) -> None:
        self._context, self._device, self._cache = context, device, cache or ProgramCache(BACKEND)
        made_by, versions = device.platform, (device.version, device.driver_version)
        self._identity = (made_by.name, made_by.version, device.vendor, device.name, *versions)

    def build(self, kernel: str, source: str, options: list[str]) -> cl.Program:
        """The built program, from the cache where possible; KernelCompileError with the log where it does not build."""

        def built(*parts: Any) -> cl.Program:
            with checked("compile", kernel=kernel), warnings.catch_warnings():  # of compilers about sources that build
                warnings.simplefilter("ignore")
                program: cl.Program = cl.Program(self._context, *parts)
                program.get_info(cl.program_info.NUM_DEVICES)  # touched first, pyopencl's own cache stays out
                program.build(options=options)
            return program

        key, devices = ProgramCache.key(*self._identity, *options, source), [self._device]
        return self._cache.program(key, lambda kept: built(devices, [kept]), lambda: built(source), self._binary)

    def _binary(self, program: cl.Program) -> bytes | None:
        with suppress(cl.Error):  # a driver without binaries: it builds each time
            binaries = program.get_info(cl.program_info.BINARIES)
            if isinstance(binaries, list) and binaries and isinstance(binaries[0], bytes):
                return binaries[0]
        return None
