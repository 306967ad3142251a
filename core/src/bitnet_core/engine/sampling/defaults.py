"""Sampling defaults of a model: from its file, else those recommended for its family."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitnet_hal.errors import UsageError

from bitnet_core.engine.sampling.sampler import SamplingParams
from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import short
from bitnet_core.model.families import FAMILIES
from bitnet_core.model.source import ModelSource

_GGUF: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Names of general.sampling.* keys."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters for a caller who sets none. origin: their source, "" if there is none (then greedy)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    origin: str = ""

    def params(self, **given: Any) -> SamplingParams:
        """Return these parameters, overridden by those given and not None. Raises UsageError for values out of
        range."""
        own = {name: getattr(self, name) for name in _GGUF}
        wanted = {name: copy(value) for name, value in given.items() if value is not None}  # logit_bias is the caller's
        return SamplingParams(**own | wanted)

    def described(self) -> str:
        """Return a readable form: "temperature 0.6, top-k 20, top-p 0.95"."""
        usual = SamplingDefaults()
        named = (name for name in _GGUF if name == "temperature" or getattr(self, name) != getattr(usual, name))
        return ", ".join(f"{name.replace('_', '-')} {getattr(self, name):g}" for name in named)


def sampling_defaults(source: ModelSource) -> SamplingDefaults:
    """Return a model's defaults: from generation_config.json (do_sample), general.sampling.* keys, or its family.

    Raises ModelError for values out of range.
    """
    metadata = source.metadata
    generation = source.metadata.get("generation_config")
    if isinstance(generation, Mapping):
        if generation.get("do_sample") is not True:
            return SamplingDefaults()
        found = {name: generation[name] for name in _GGUF if generation.get(name) is not None}
        return _checked(source.path, {"temperature": 1.0} | found, "generation_config.json")
    stated = {name: metadata.get(f"general.sampling.{key}") for name, key in _GGUF.items()}
    found = {name: value for name, value in stated.items() if value is not None}
    if found:
        return _checked(source.path, found, "the model file")
    own = FAMILIES[source.config.arch].sampling if source.config.arch in FAMILIES else None
    return SamplingDefaults(own.temperature, own.top_k, own.top_p, origin=own.origin) if own else SamplingDefaults()


def _checked(path: Path, values: dict[str, Any], origin: str) -> SamplingDefaults:
    for name, value in values.items():
        whole = name == "top_k"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ModelError(f"{path}: {name} of {origin} is {short(value)}, not a {'whole ' if whole else ''}number")
    if "top_k" in values:
        values["top_k"] = max(values["top_k"], 0)  # some writers use -1 for "all"
    try:
        SamplingParams(**values)
    except UsageError as error:
        raise ModelError(f"{path}: bad sampling defaults in {origin}: {error}") from error
    return SamplingDefaults(**values, origin=origin)
