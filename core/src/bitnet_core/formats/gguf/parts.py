"""GGUF files in parts, as llama-gguf-split writes them: NAME-00001-of-00003.gguf and so on.

Part 1 has the metadata; each part has its own tensors, and states its number (split.no, from 0) and the number of parts
(split.count). A file that was merged again has split.count = 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bitnet_core.errors import ModelError
from bitnet_core.formats.gguf.container import MAX_TENSORS, GGUFFile, Tensor
from bitnet_core.formats.keys import MetadataReader
from bitnet_core.formats.mapped import sha256

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MAX_PARTS = 1 << 10


class SplitGGUF:
    """All parts of a split GGUF file, with the interface of GGUFFile. Closes every part if one is unsound."""

    def __init__(self, path: Path, paths: list[Path], mapped: bool) -> None:
        self.path = path
        self._files: list[GGUFFile] = []
        self._owner: dict[str, GGUFFile] = {}
        self.tensors: dict[str, Tensor] = {}
        try:
            for number, part in enumerate(paths):
                self._add(part, number, len(paths), mapped)
            self.version = self._files[0].version
            self._check_total()
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path, number: int, count: int, mapped: bool) -> None:
        file = GGUFFile(path, mapped)
        self._files.append(file)
        keys = MetadataReader(path, file.metadata, "split.")
        said = keys.count_or_none("no", limit=_MAX_PARTS), keys.count("count", limit=_MAX_PARTS)
        if said != (number, count):
            raise ModelError(
                f"{path}: states that it is part {said[0] + 1} of {said[1]}, and its name says {number + 1} of "
                f"{count}; get the parts of one model"
            )
        for name, tensor in file.tensors.items():
            if name in self.tensors:
                raise ModelError(f"{path}: tensor {name!r} is in another part as well")
            self.tensors[name], self._owner[name] = tensor, file

    def _check_total(self) -> None:
        keys = MetadataReader(self._files[0].path, self.metadata, "split.")
        total = keys.count_or_none("tensors.count", limit=MAX_TENSORS)
        if total and total != len(self.tensors):
            raise ModelError(f"{self.path}: its parts have {len(self.tensors)} tensors, and the first states {total}")

    @property
    def metadata(self) -> dict[str, Any]:
        """Return every key-value of the first part."""
        return self._files[0].metadata

    def sha256(self) -> str:
        """Return the hex digest of the parts' bytes in order."""
        return sha256([file.content for file in self._files])

    def forget_metadata(self) -> None:
        """Free the memory of the metadata; the next access reads it again."""
        for file in self._files:
            file.forget_metadata()

    def data(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """Return the tensor's bytes as a read-only view of its part."""
        return self._owner[tensor.name].data(tensor)

    def close(self) -> None:
        for file in self._files:
            file.close()


def open_gguf(path: Path, mapped: bool = True) -> GGUFFile | SplitGGUF:
    """Open a GGUF file, with all other parts if it is one of a split file. Raises ModelError if a part is missing."""
    file = GGUFFile(path, mapped)
    try:
        count = MetadataReader(path, file.metadata, "split.").count_or_none("count", limit=_MAX_PARTS)
        if count <= 1:
            return file
        paths = _parts(path, count)
    except BaseException:
        file.close()
        raise
    file.close()
    return SplitGGUF(path, paths, mapped)


def _parts(path: Path, count: int) -> list[Path]:
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelError(
            f"{path}: is one of {count} parts of a split model, whose other parts are found by its name alone; "
            f"name them MODEL-00001-of-{count:05}.gguf and so on, or merge them (llama-gguf-split --merge)"
        )
    paths = [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelError(
            f"{path}: is one of {count} parts of a split model, and {missing[0]} is not beside it; get all parts"
        )
    return paths
