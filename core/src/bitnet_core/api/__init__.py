"""The Python API: load a model and generate. The command line and the server are built on it."""

from bitnet_core.api.asynchronous import AsyncGeneration
from bitnet_core.api.loading import load, settle_layout
from bitnet_core.api.model import Model
from bitnet_core.api.options import ChatOptions, GenerateOptions, Prompt, SamplingOptions
from bitnet_core.engine.output import Generation, GenerationStream, TextChunk

__all__ = [
    "AsyncGeneration",
    "ChatOptions",
    "GenerateOptions",
    "Generation",
    "GenerationStream",
    "Model",
    "Prompt",
    "SamplingOptions",
    "TextChunk",
    "load",
    "settle_layout",
]
