"""Convert any readable model to GGUF (I2_S, TQ2_0, TQ1_0, Q2_0, PQ2_0, STQ1_0) or to a Hugging Face or MLX folder.

One matrix is in memory at a time. The result appears at its destination only when it is complete (and, on request, read
back and compared); an error or an interrupt leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bitnet_hal.errors import UsageError
from bitnet_hal.output import check_output

from bitnet_core.errors import ModelError
from bitnet_core.formats.convert.gguf import write_gguf
from bitnet_core.formats.convert.grouped import write_grouped
from bitnet_core.formats.convert.hf import write_folder
from bitnet_core.formats.convert.target import ENCODINGS, Target, check_shapes
from bitnet_core.formats.convert.verify import compare
from bitnet_core.formats.names import matrices, tables
from bitnet_core.model.families import FAMILIES, Family
from bitnet_core.model.source import Finding, ModelSource
from bitnet_core.progress import Progress
from bitnet_core.tokenizer.chat import unreadable
from bitnet_core.tokenizer.load import load_tokenizer

_TABLES = ("token_embd.weight", "output.weight", "model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion: the files written, and findings for the user."""

    path: Path
    nbytes: int
    findings: tuple[Finding, ...]
    verified: bool


def convert(
    source: ModelSource,
    destination: Path,
    target: Target,
    *,
    force: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Write `source` to `destination`, a file or (safetensors, mlx) a folder.

    force: replace an existing file or model folder. verify: read back every ternary value and scale, every other weight
    and the tokenizer, and compare them before the result appears. Raises UsageError for an invalid destination,
    ModelError if the target cannot hold the model or the comparison fails.
    """
    family = FAMILIES.get(source.config.arch, Family())
    if kind := family.not_written:
        raise UsageError(f"{source.path}: models {kind} can be run but not converted")
    if source.config.projection_norms and target in ("safetensors", "mlx"):
        raise ModelError(f"{source.path}: a folder of this model has master weights, which are lost; convert to GGUF")
    check_shapes(source.config, target)
    shapes = [*matrices(source.config).values(), *tables(source.config).values()]
    total = sum(rows * columns for rows, columns in shapes)

    def stepper(what: str) -> Callable[[int], None]:
        done = 0

        def step(weights: int) -> None:
            nonlocal done
            done += weights
            source.release()  # weights are read once, so their pages need not stay in memory
            if progress is not None:
                progress(what, done, total)

        return step

    findings: list[Finding] = []
    with _staged(source, destination, force) as staged:
        if target == "mlx" or (target == "safetensors" and family.grouped):
            write_grouped(source, staged, stepper("converting"), packed=target == "mlx")
        elif target == "safetensors":
            write_folder(source, staged, stepper("converting"))
        else:
            findings = write_gguf(source, staged, ENCODINGS[target], stepper("converting"))
        findings = [*findings, *_template_findings(source)]
        if verify:
            compare(source, staged, target, stepper("comparing"))
        nbytes = sum(file.stat().st_size for file in [staged, *staged.glob("*")] if file.is_file())
    return Conversion(destination, nbytes, tuple(findings), verify)


def _template_findings(source: ModelSource) -> list[Finding]:
    """Return a warning if the chat template, which is copied as it is, does not parse."""
    if not (reason := unreadable(load_tokenizer(source.tokenizer))):
        return []
    return [Finding("warning", "chat-template-unreadable", f"the chat template is copied as it is: {reason}")]


def has_masters(source: ModelSource) -> bool:
    """Return whether any linear layer is stored as floats."""
    return any(
        len(tensor.shape) == 2 and tensor.dtype in ("F32", "F16", "BF16") and tensor.name not in _TABLES
        for tensor in source.tensors
    )


@contextmanager
def _staged(source: ModelSource, destination: Path, force: bool) -> Iterator[Path]:
    """Yield a path next to the destination; after the block it replaces the destination, or is removed on an error."""
    _check_destination(source, destination, force)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{destination.name[:100]}.", dir=destination.parent))
    except OSError as error:
        raise UsageError(f"{destination}: cannot be written: {error.strerror or error}") from error
    try:
        yield folder / destination.name
        _check_destination(source, destination, force)  # the destination may have been created meanwhile
        _replace(folder, destination)
    except OSError as error:
        raise ModelError(f"{destination}: cannot be written: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_destination(source: ModelSource, destination: Path, force: bool) -> None:
    if destination.is_dir() and not destination.is_symlink():
        _check_replaceable(source, destination, force)
    else:
        check_output(destination, [source.path], force=force)


def _check_replaceable(source: ModelSource, destination: Path, force: bool) -> None:
    same = destination.resolve()
    if same in (source.path.resolve(), source.path.resolve().parent):
        raise UsageError(f"{destination}: is (or holds) the model that is being converted; choose another name")
    if not force:
        raise UsageError(f"{destination}: exists; choose another name, or replace it with --force")
    entries = list(destination.iterdir())
    if not all(entry.is_file() for entry in entries) or (entries and not (destination / "config.json").is_file()):
        raise UsageError(f"{destination}: is a folder that holds other files than one model; it is not replaced")


def _replace(folder: Path, destination: Path) -> None:
    """Move the new folder to the destination, replacing a folder or file there; restore the old one on a failure."""
    written, old = folder / destination.name, folder / "replaced"
    try:
        if destination.is_dir() or (destination.exists() and written.is_dir()):
            destination.rename(old)
        os.replace(written, destination)
    except BaseException:  # the old content must be restored after an interrupt too
        if old.exists() and not destination.exists():
            old.rename(destination)
        raise
