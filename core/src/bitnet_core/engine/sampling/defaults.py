"""Sampling defaults of a model: from its files, else those recommended for its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bitnet_hal.errors import UsageError

from bitnet_core.errors import ModelError
from bitnet_core.formats.keys import short
from bitnet_core.model.families import FAMILIES
from bitnet_core.model.source import ModelSource
from bitnet_core.options.fields import options_of
from bitnet_core.options.sampling import SamplingParams

_GGUF: Final = {name: one.option.gguf for name, one in options_of(SamplingParams).items() if one.option.gguf}
"""Names of general.sampling.* keys by option."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters for callers that set none. origin: their source, "" if there is none (then greedy)."""

    values: SamplingParams = SamplingParams()
    origin: str = ""

    def params(self, **given: Any) -> SamplingParams:
        """Return these parameters, overridden by those given that are not None. Raises UsageError for values out of
        range."""
        wanted = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**{name: getattr(self.values, name) for name in _GGUF} | wanted)

    def described(self) -> str:
        """Return the options that are not switched off, such as "temperature 0.6, top-k 20, top-p 0.95"."""
        off = SamplingParams()
        values = {name: getattr(self.values, name) for name in _GGUF}
        return ", ".join(
            f"{name.replace('_', '-')} {value:g}"
            for name, value in values.items()
            if name == "temperature" or value != getattr(off, name)
        )


def sampling_defaults(source: ModelSource) -> SamplingDefaults:
    """Return a model's defaults: those of generation_config.json (do_sample), of general.sampling.* keys, or of its
    family. Raises ModelError for values out of range.
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
    if own is None:
        return SamplingDefaults()
    return SamplingDefaults(SamplingParams(own.temperature, own.top_k, own.top_p), own.origin)


def _checked(path: Path, values: dict[str, Any], origin: str) -> SamplingDefaults:
    options = options_of(SamplingParams)
    for name, value in values.items():
        whole = options[name].annotation is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise ModelError(f"{path}: {name} of {origin} is {short(value)}, not a {'whole ' if whole else ''}number")
    if "top_k" in values:
        values["top_k"] = max(values["top_k"], 0)  # some writers use -1 for "all"
    try:
        return SamplingDefaults(SamplingParams(**values), origin)
    except UsageError as error:
        raise ModelError(f"{path}: bad sampling defaults in {origin}: {error}") from error
