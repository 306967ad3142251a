"""Open a draft model, check that it fits the model, and load it onto a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from bitnet_hal.device import Device
from bitnet_hal.discovery.selection import open_device
from bitnet_hal.errors import GpuError, OutOfMemoryError, UsageError

from bitnet_core.engine.engine import Engine
from bitnet_core.engine.memory_limit import limit_memory
from bitnet_core.engine.speculation.draft_model import DraftModel
from bitnet_core.model.config import ModelConfig
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import Tokenizer, load_tokenizer
from bitnet_core.tokenizer.compare import difference


class Draft:
    """A draft model to load. source: its opened file, which the loaded draft model closes; device: the request for its
    device, None for that of the model."""

    def __init__(self, source: ModelSource, device: str | None) -> None:
        self.source = source
        self.device = device

    def check(self, tokenizer: Callable[[], Tokenizer], config: ModelConfig) -> None:
        """Raise UsageError if the vocabularies of the draft model and of the model differ."""
        drawn = self.source.config
        found = ""
        if drawn.tokens != config.tokens:
            found = f"it has {drawn.tokens:,} tokens, not {config.tokens:,}"
        found = found or difference(tokenizer(), load_tokenizer(self.source.tokenizer, prepared=False), config.tokens)
        if found:
            name = drawn.name or self.source.path.name
            raise UsageError(
                f"{name} cannot draft for {config.name or config.arch}, because its vocabulary differs: {found}. "
                "Use a draft model of the same family"
            )

    def load(self, device: Device, context: int, options: EngineOptions) -> DraftModel:
        """Load the draft model. device, context, options: those of the model."""
        opened, _ = open_device(self.device or device.info.request)
        try:
            limit_memory(opened, options.device_memory, beside=device)
            context = min(context, self.source.config.context)
            settings = EngineOptions(context=context, max_sequences=options.max_sequences, speculate="off")
            return DraftModel(Engine(self.source, opened, settings))
        except BaseException as error:
            if isinstance(error, OutOfMemoryError):
                error.message = f"there is no memory for the draft model: {error.message}"
                error.hint += ", or load the model without a draft model"
            with suppress(GpuError):  # report the first error
                opened.close()
            raise
