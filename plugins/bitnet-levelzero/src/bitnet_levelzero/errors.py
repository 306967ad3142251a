"""Conversion of Level Zero's results to exceptions."""

from __future__ import annotations

from bitnet_hal.plugin import StatusCodes

BACKEND = "level-zero"
UNINITIALIZED = 0x78000001
RESULTS = StatusCodes(__file__, BACKEND, lambda result, name: f"ZE_RESULT_{name or 'unnamed'} (0x{result:08x})")
check = RESULTS.check
