"""Open a model in any supported form, or raise an error that names the fault."""

from __future__ import annotations

from pathlib import Path

from bitnet_hal.errors import StrictModeError, UsageError

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.gguf.types import MAGIC
from bitnet_core.formats.hf.source import HuggingFaceSource
from bitnet_core.formats.json_file import LFS_MESSAGE, LFS_POINTER
from bitnet_core.formats.ternary.i2_s import LAYOUTS
from bitnet_core.formats.ternary.tiles import Tiles
from bitnet_core.hub.reference import meant
from bitnet_core.model.source import ModelSource
from bitnet_core.options.loading import Layout

_START = 64  # bytes by which the kind of a file is recognised
_OLD_GGML = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt and ggla, little-endian


def open_model(
    path: str | Path,
    *,
    layout: Layout | None = None,
    tiles: Tiles | None = None,
    strict: bool = False,
    quantize: bool = False,
    mapped: bool = True,
) -> ModelSource:
    """Open a GGUF file or a Hugging Face folder.

    layout: the byte layout of I2_S tensors; None detects it from the file. tiles: tile sizes of TL1 and TL2 matrices by
    (rows, columns), for shapes whose tile is not known. strict: treat warnings about the model as errors. quantize: the
    float matrices of a GGUF file may be master weights, which are quantized (absmean) as they are read. mapped: map
    files; if False, read them as a whole, so that they may change or be truncated later. Raises ModelError if the path
    does not hold a supported model, StrictModeError for a warning under `strict`, UsageError for an unknown layout or
    one for a model without I2_S tensors.
    """
    path = Path(path)
    try:
        return _checked(path, layout, tiles, strict, quantize, mapped)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def _checked(
    path: Path, layout: Layout | None, tiles: Tiles | None, strict: bool, quantize: bool, mapped: bool
) -> ModelSource:
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"the I2_S layout {layout!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    source = _open(path, layout, tiles, quantize, mapped)
    if layout is not None and not (isinstance(source, GGUFSource) and source.has_i2_s):
        source.close()
        raise UsageError(f"{path}: a layout was given, but the model has no I2_S tensors")
    warnings = [finding for finding in source.findings if finding.severity == "warning"]
    if strict and warnings:
        source.close()
        raise StrictModeError(f"{path}: " + "; ".join(f"{w.message} [{w.code}]" for w in warnings))
    return source


def _open(path: Path, layout: Layout | None, tiles: Tiles | None, quantize: bool, mapped: bool) -> ModelSource:
    if path.is_dir():
        return _open_folder(path, mapped)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "there is no such file" + _meant(path)
        raise ModelError(f"{path}: {what}")
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if start[:4] == MAGIC:
        return GGUFSource(path, layout, tiles, quantize, mapped)
    raise ModelError(f"{path}: {_not_gguf(path, start)}")


def _meant(path: Path) -> str:
    """Return a hint if the path looks like another program's name of a model of the hub."""
    reference = meant(path.as_posix())
    return "" if reference is None or path.parent.exists() else f"; did you mean {reference}?"


def _open_folder(path: Path, mapped: bool) -> ModelSource:
    if (path / "config.json").is_file():
        return HuggingFaceSource(path, mapped)
    files = sorted(path.glob("*.gguf"), key=lambda file: ("mmproj" in file.name, file.name))
    if files and "mmproj" in files[0].name:
        raise ModelError(
            f"{path}: has no model: {files[0].name} is a vision tower (mmproj), and images are not supported"
        )
    if files:
        raise ModelError(f"{path}: is a directory; pass a GGUF file in it, such as {files[0]}")
    raise ModelError(f"{path}: is a directory without config.json; pass a GGUF file or a Hugging Face folder")


def _not_gguf(path: Path, start: bytes) -> str:
    """Explain, from its first bytes, why a file that is not GGUF is rejected."""
    if not start:
        return "the file is empty"
    if start[8:9] == b"{" or path.suffix == ".safetensors":
        return "a safetensors file alone is not a model; pass the folder that holds it with config.json"
    if start[:4] in _OLD_GGML:
        return "a GGML file older than GGUF; convert it to GGUF with a current converter"
    if start.startswith(LFS_POINTER):
        return LFS_MESSAGE
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "a web page, which a server sent in place of the file; get the file again"
    if start[:2] in (b"PK", b"\x80\x02") or path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return (
            "a PyTorch checkpoint is a pickle, which can run any program as it is loaded, so it is not read; "
            "use the model's GGUF file or its safetensors folder"
        )
    if path.suffix == ".onnx" or path.name.endswith((".onnx_data", ".onnx.data")):
        return (
            "an ONNX model (MatMulNBits), which is not supported; use the model's GGUF file or its safetensors folder"
        )
    return "not a model file (it does not start with the letters GGUF)"
