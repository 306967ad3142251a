"""The options of loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bitnet_core.options.fields import DEVICE, MODEL, check_options, option

Layout = Literal["A", "B", "C"]
"""Byte layouts of I2_S tensors. A: 128 columns in 32 bytes (Microsoft's published files); B: 64 columns in 16 bytes
(written on ARM); C: four rows interleaved."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of opening a model file. Raises UsageError for a value of a wrong type."""

    layout: Layout | None = option(
        None, group=MODEL, help="Byte layout of I2_S tensors. Default: detected from the file."
    )
    strict: bool | None = option(
        None, flags=(), help="Treat warnings about the file as errors. Default: as BITNET_STRICT_MODE says."
    )
    mmap: bool = option(
        True, group=MODEL, help="Map the file into memory. Otherwise read the whole file, which may then be changed."
    )
    fallback: bool = option(
        True,
        group=DEVICE,
        help="Let auto use the next device if one fails, at load or in the middle of a text. A device that is named "
        "is never replaced.",
    )
    draft_model: str | None = option(
        None,
        flags=("--draft-model", "-md"),
        metavar="FILE",
        group=MODEL,
        help="A smaller model with the same vocabulary, which drafts tokens (see `speculate`); the same values as for "
        "the model.",
    )
    draft_device: str | None = option(
        None, metavar="DEVICE", group=DEVICE, help="The device of the draft model. Default: the model's."
    )

    def __post_init__(self) -> None:
        check_options(self)
