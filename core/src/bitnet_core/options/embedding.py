"""The options of embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bitnet_core.options.fields import check_options, option

EmbeddingType = Literal["float32", "int8"]


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """The options of embeddings. Raises UsageError for a value of a wrong type or out of range."""

    dimensions: int | None = option(
        None,
        at_least=1,
        help="Keep only the first N numbers of each vector, for models that were trained for it (Matryoshka). "
        "Default: all of them.",
    )
    dtype: EmbeddingType = option(
        "float32", help="Type of the numbers; int8: each vector is scaled so that its largest magnitude is 127."
    )
    truncate: bool = option(False, help="Cut texts at the context length. Otherwise a longer text is an error.")

    def __post_init__(self) -> None:
        check_options(self)
