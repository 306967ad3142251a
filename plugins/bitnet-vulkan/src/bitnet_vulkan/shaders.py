"""Which SPIR-V files there are, and how they are made from the GLSL beside them.

The committed binaries are what `glslangValidator` of Debian 12 (12.0) makes; `python -m bitnet_vulkan.shaders` makes
them again, and the tests prove that source and binary agree.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
_DOT = ("matmul_ternary", "matmul_ternary_tiled", "matmul_ternary_block")
"""Sources that are also built with the packed integer dot product (an optional device feature)."""


def variants() -> Iterator[tuple[Path, Path, tuple[str, ...]]]:
    """(GLSL source, SPIR-V file, extra compiler flags) of every binary."""
    for source in sorted(KERNELS.glob("*.comp")):
        yield source, source.with_suffix(".spv"), ()
        if source.stem in _DOT:
            yield source, source.with_suffix(".dot.spv"), ("-DDOT",)


def build(target: Path) -> bool:
    """Compile every binary into the folder `target`; False if glslangValidator is not installed.

    Raises RuntimeError with the compiler's log if a source does not compile.
    """
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        return False
    for source, binary, flags in variants():
        command = [compiler, "-V", "--target-env", "vulkan1.1", *flags, f"-I{KERNELS}"]
        result = subprocess.run(
            [*command, "-o", str(target / binary.name), str(source)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{result.stdout}{result.stderr}")
    return True


if __name__ == "__main__":
    if not build(KERNELS):
        raise SystemExit("glslangValidator is not installed (Debian: glslang-tools)")
