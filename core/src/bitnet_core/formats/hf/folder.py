"""The files of a Hugging Face or MLX folder, and the model's name."""

from __future__ import annotations

from pathlib import Path

from bitnet_core.errors import ModelError
from bitnet_core.formats.json_file import read_object, read_text

INDEX = "model.safetensors.index.json"
_MAX_SHARDS = 1 << 10


def model_name(folder: Path) -> str:
    """Return the folder's name; in huggingface_hub's cache, whose folders are commits, the repository's."""
    folder = folder.resolve()
    of_cache = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    return folder.parent.parent.name.rpartition("--")[2] if of_cache else folder.name


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder in name order.

    Raises ModelError if there are none, or if the index names files that are not in the folder.
    """
    index = folder / INDEX
    if index.is_file():
        names = read_object(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ModelError(f"{index}: has no weight_map of file names")
        files = sorted(set(names.values()))
        if not files or len(files) > _MAX_SHARDS:
            raise ModelError(f"{index}: names {len(files)} files, not 1 to {_MAX_SHARDS}")
        for name in files:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ModelError(f"{index}: names {name[:80]!r}, which is not a safetensors file in the folder")
            if not (folder / name).is_file():
                raise ModelError(f"{index}: names {name[:80]!r}, which is missing in the folder; get it as well")
        return [folder / name for name in files]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise ModelError(f"{folder}: has {len(found)} safetensors files but no {INDEX}; get the index as well")
    if list(folder.glob("*.onnx")) or list(folder.glob("onnx/*.onnx")):
        raise ModelError(
            f"{folder}: holds the model as ONNX (MatMulNBits), which is not supported; get the model's GGUF file or "
            "its safetensors"
        )
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        raise ModelError(
            f"{folder}: holds only PyTorch checkpoints; they are pickles, which can run any program as they are "
            "loaded, so they are not read; get the safetensors files"
        )
    raise ModelError(f"{folder}: has a config.json but no safetensors file; get the weights as well")


def chat_template(folder: Path, name: str, *others: str) -> str | None:
    """Return the template in the file `name`, else that in the first existing one of `others`; None if there is none. A
    file takes precedence over tokenizer_config.json, as in transformers."""
    for path in (f"additional_chat_templates/{name}.jinja", *others):
        if (folder / path).is_file():
            return read_text(folder / path)
    return None
