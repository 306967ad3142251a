"""Build src/bitnet_levelzero/programs.zip from the kernels of bitnet-opencl, or check that it is up to date.

    python tools/build_programs.py [--check] [--only PART OF A NAME]

Requires bitnet-core, bitnet-opencl, clang 15, opt 15, llvm-spirv 15 and spirv-val (Debian 12: clang-15 llvm-15
llvm-spirv-15 spirv-tools). clang's own optimizer is off, because llvm-spirv then writes blocks in an invalid order.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from bitnet_hal.device import Tuning
from bitnet_hal.families.opencl_c import program_source
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec
from bitnet_hal.tuning.table import TuningTable
from bitnet_levelzero.tuning import ALTERNATIVES, TUNINGS, program_name
from bitnet_opencl import clc

ARCHIVE = Path(__file__).parents[1] / "src" / "bitnet_levelzero" / "programs.zip"
CLANG = ("clang-15", "-c", "-target", "spir64-unknown-unknown", "-cl-std=CL2.0", "-O0", "-w", "-emit-llvm")
CLANG += ("-Xclang", "-disable-O0-optnone", "-Xclang", "-finclude-default-header", "-DOPAQUE_CODES=1", "-x", "cl", "-")
PASSES = "-passes=always-inline,mem2reg,instsimplify,globaldce"


def programs(
    tables: Sequence[TuningTable] = (TUNINGS, ALTERNATIVES),
) -> Iterator[tuple[str, KernelSpec, dict[str, int], Tuning]]:
    """Yield (name, kernel, semantic constants, tuning) of every program in these tables."""
    for kernel in TUNINGS.rows:
        rows = [row for table in tables for row in table.rows.get(kernel, ())]
        spec = CATALOGUE[kernel]
        for values in product(*spec.constants.values()):
            constants = dict(zip(spec.constants, values, strict=True))
            tunings = [row.tuning({}.__getitem__) for row in rows if not row.unsupported]  # rows need no sizes
            named = {program_name(spec, constants, tuning): tuning for tuning in tunings}  # rows may share one
            yield from ((name, spec, constants, tuning) for name, tuning in named.items())


def build(job: tuple[str, KernelSpec, dict[str, int], Tuning]) -> tuple[str, bytes]:
    """Return (name, validated SPIR-V) of a program."""
    name, spec, constants, tuning = job
    source = program_source(clc.PORTABLE, spec, constants, tuning, pointers=True)
    with tempfile.TemporaryDirectory() as folder:
        raw, clean, out = (str(Path(folder) / file) for file in ("a.bc", "b.bc", "c.spv"))
        subprocess.run([*CLANG, "-o", raw], input=source.encode(), check=True)
        subprocess.run(["opt-15", PASSES, raw, "-o", clean], check=True)
        subprocess.run(["llvm-spirv-15", "--spirv-max-version=1.2", clean, "-o", out], check=True)
        subprocess.run(["spirv-val", "--target-env", "opencl2.2", out], check=True)
        return name, Path(out).read_bytes()


def build_all(only: str = "", workers: int = 2) -> dict[str, bytes]:
    """Return the SPIR-V, by name, of every program whose name contains `only`."""
    jobs = [job for job in programs() if only in job[0]]
    with ThreadPoolExecutor(workers) as pool:
        return dict(pool.map(build, jobs))


def packed(built: dict[str, bytes]) -> bytes:
    """Return the archive; the same programs give the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(built):
            entry = zipfile.ZipInfo(name)  # with the constant date 1980
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, built[name])
    return content.getvalue()


def differences(built: dict[str, bytes], only: str = "") -> list[str]:
    """Return the names of programs that the archive lacks or holds with other bytes."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        there = {name: archive.read(name) for name in archive.namelist() if only in name}
    return sorted(name for name in built.keys() | there.keys() if built.get(name) != there.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    built = build_all(options.only)
    if options.check:
        different = differences(built, options.only)
        sys.stdout.write("\n".join(different) + "\n" if different else f"{len(built)} programs are as they should be\n")
        return int(bool(different))
    ARCHIVE.write_bytes(packed(built))
    sizes = sum(map(len, built.values())), ARCHIVE.stat().st_size
    sys.stdout.write(f"{len(built)} programs, {sizes[0]:,} bytes, {sizes[1]:,} packed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
