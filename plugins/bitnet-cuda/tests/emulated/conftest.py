"""Kernels are compiled for the CPU in this folder's tests (run by ../test_emulated.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bitnet_cuda import compiler
from emulator.build import compile_for_cpu

compiler.compile_cubin = compile_for_cpu
