"""A Hugging Face folder (config.json, safetensors, tokenizer.json) as a ModelSource."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats import dense, sanity
from bitnet_core.formats.hf_config import read_config
from bitnet_core.formats.hf_names import canonical
from bitnet_core.formats.json_file import read_object, read_text
from bitnet_core.formats.mapped import forget_pages
from bitnet_core.formats.names import matrices
from bitnet_core.formats.safetensors_file import StoredTensor, read_safetensors
from bitnet_core.formats.source import Finding, TensorInfo
from bitnet_core.formats.ternary import floats, hf_packed
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.weights import DenseWeight, TernaryWeight

INDEX = "model.safetensors.index.json"
_MAX_SHARDS = 1 << 10
_MAX_TOKENIZER = 1 << 26  # bytes; Llama 3's file has 17 million
_SAMPLE = 1 << 14  # packed bytes of a matrix that are looked at when the folder is opened
_FLOATS = ("F32", "F16", "BF16")


class HuggingFaceSource:
    """An open Hugging Face folder. Raises ModelError if it is no supported model."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = weight_files(folder)
        self._values = read_object(folder / "config.json")
        self._tensors = self._read_tensors()
        name = folder.resolve().name
        self._config, self._quantization = read_config(folder / "config.json", self._values, self._tensors.keys(), name)
        self._matrices = matrices(self._config)
        sanity.check_shapes(folder, self._config, {name: self._shape(name) for name in self._tensors})
        self._findings = self._find()

    @property
    def path(self) -> Path:
        return self._folder

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def format(self) -> str:
        kinds = dict.fromkeys(self._tensors[name].dtype for name in self._matrices)
        packed = f"packed U8 ({self._quantization.direction} by weight_scale)"
        words = [packed if kind == "U8" else f"{kind} masters (absmean)" for kind in kinds]
        return f"Hugging Face safetensors, {' + '.join(words)}"

    @property
    def findings(self) -> Sequence[Finding]:
        return tuple(self._findings)

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        return [TensorInfo(t.name, t.dtype, t.shape, t.data.size) for t in self._tensors.values()]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return dict(self._values)

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        parts: dict[str, Any] = {"kind": "hf"}
        if (self._folder / "tokenizer.json").is_file():
            parts["tokenizer_json"] = read_text(self._folder / "tokenizer.json", _MAX_TOKENIZER)
        for key in ("tokenizer_config", "generation_config"):
            file = self._folder / f"{key}.json"
            parts[key] = read_object(file) if file.is_file() else {}
        template = self._folder / "chat_template.jinja"
        if template.is_file():
            parts["tokenizer_config"].setdefault("chat_template", read_text(template))
        parts["generation_config"].setdefault("eos_token_id", self._values.get("eos_token_id"))
        return parts

    def ternary(self, name: str) -> TernaryWeight:
        tensor = self._tensor(name)
        if name not in self._matrices:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} is no linear layer")
        rows, columns = self._matrices[name]
        try:
            weight = self._decode(name, tensor, rows, columns)
            sanity.check_scales(weight.scales)
        except ModelError as error:
            raise ModelError(f"{self.path}: tensor {tensor.name!r}: {error}") from error
        return weight

    def dense(self, name: str) -> DenseWeight:
        tensor = self._tensor(name)
        if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} of type {tensor.dtype} is no float matrix")
        return dense.from_file(tensor.data, tensor.dtype, *tensor.shape)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensor(name)
        if tensor.dtype not in _FLOATS or len(tensor.shape) > 1:
            raise ModelError(f"{self.path}: tensor {tensor.name!r} of type {tensor.dtype} is no vector of floats")
        kind = dense.KERNEL_TYPES[tensor.dtype]
        return dense.decode(tensor.data[None], kind, tensor.shape[0] if tensor.shape else 1).reshape(-1)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for path in self._files:
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        return digest.hexdigest()

    def release(self) -> None:
        for tensor in self._tensors.values():
            forget_pages(tensor.data)

    def close(self) -> None:
        self._tensors = {}

    def _read_tensors(self) -> dict[str, StoredTensor]:
        """All tensors of all files by canonical name."""
        tensors: dict[str, StoredTensor] = {}
        for path in self._files:
            for stored in read_safetensors(path).values():
                name = canonical(stored.name)
                if name is None:
                    raise ModelError(f"{path}: tensor {stored.name!r} is unknown: an unsupported kind of model")
                if name in tensors:
                    raise ModelError(f"{path}: tensor {stored.name!r} appears twice, also as {tensors[name].name!r}")
                if name:
                    tensors[name] = stored
        return tensors

    def _tensor(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: has no tensor {name!r}") from None

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of the matrix, not of its packed bytes."""
        tensor = self._tensors[name]
        if tensor.dtype == "U8" and name in self._matrices and len(tensor.shape) == 2:
            rows = self._matrices[name][0]
            slab, columns = tensor.shape
            return (rows if slab == -(-rows // 4) else 4 * slab, columns)
        return tensor.shape

    def _decode(self, name: str, tensor: StoredTensor, rows: int, columns: int) -> TernaryWeight:
        if tensor.dtype == "U8":
            codes = hf_packed.decode_codes(tensor.data.reshape(-1, columns), rows)
            return TernaryWeight(rows, columns, codes, self._scale(name))
        if tensor.dtype not in _FLOATS:
            raise ModelError(f"type {tensor.dtype} is not read as a ternary matrix")
        raw = tensor.data.reshape(rows, -1)

        def values_of(part: slice) -> npt.NDArray[np.float32]:
            return dense.decode(raw[part], dense.KERNEL_TYPES[tensor.dtype], columns)

        return floats.absmean(rows, columns, values_of)

    def _scale(self, name: str) -> npt.NDArray[np.float32]:
        """The factor of the codes' values, f32[1], from weight_scale in the direction of the linear class."""
        stored = self.vector(f"{name}.scale")
        if self._quantization.direction == "multiply":
            return stored
        with np.errstate(all="ignore"):
            return np.float32(1) / stored

    def _find(self) -> list[Finding]:
        """Refuses biases and unsound norms and scales; what is odd about the folder."""
        findings = []
        if not (self._folder / "tokenizer.json").is_file():
            findings.append(Finding("warning", "missing-tokenizer", "the folder has no tokenizer.json"))
        odd, stored, masters = sanity.Oddities(), [], False
        for name, tensor in self._tensors.items():
            try:
                if name.endswith(".bias") and self.vector(name).any():
                    raise ModelError("is a bias, and layers with biases do not run")
                if name in self._matrices and tensor.dtype == "U8":
                    self._look(name, tensor, odd)
                    stored.append(float(self.vector(f"{name}.scale")[0]))
                elif name in self._matrices:
                    masters = True
                elif len(tensor.shape) == 1:
                    sanity.check_norm(self.vector(name))
            except ModelError as error:
                raise ModelError(f"{self._folder}: tensor {tensor.name!r}: {error}") from error
        if masters:
            text = "float masters are quantized at load (absmean per matrix)"
            findings.append(Finding("info", "masters-quantized", text))
        quantization = self._quantization
        return [
            *findings,
            *odd.findings(),
            *sanity.scale_direction(stored, quantization.direction, quantization.linear_class),
        ]

    def _look(self, name: str, tensor: StoredTensor, odd: sanity.Oddities) -> None:
        """Scale and the first packed rows of a matrix."""
        if not self.has(f"{name}.scale"):
            raise ModelError("is packed and has no weight_scale")
        scale = self._scale(name)
        sanity.check_scales(scale)
        columns = tensor.shape[1]
        first = tensor.data[: max(_SAMPLE // columns, 1) * columns]
        odd.look(name, scale, sanity.nonzero_share(first, 4 * first.size))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder in name order.

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
            if Path(name).name != name or not name.endswith(".safetensors") or not (folder / name).is_file():
                raise ModelError(f"{index}: names {name[:80]!r}, which is no safetensors file in the folder")
        return [folder / name for name in files]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise ModelError(f"{folder}: has {len(found)} safetensors files and no {INDEX}; get the index as well")
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        raise ModelError(
            f"{folder}: holds only PyTorch checkpoints; they are pickles, which can run any program when they are "
            "loaded, so they are not read; get the safetensors files"
        )
    raise ModelError(f"{folder}: has a config.json and no safetensors file; get the weights as well")
