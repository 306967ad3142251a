"""Open a model file and load it onto a device."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Unpack

from bitnet_hal.device import Device
from bitnet_hal.discovery.opening import Opening
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary, open_device, open_next
from bitnet_hal.environment import strict_mode
from bitnet_hal.errors import DEVICE_FAILURES, GpuError, OutOfMemoryError, UsageError

from bitnet_core.api.arguments import TEXT, check, check_model, check_options
from bitnet_core.api.model import Model
from bitnet_core.api.options import EngineSettings
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.options import EngineOptions
from bitnet_core.engine.perplexity import token_losses
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT, decide_layout
from bitnet_core.formats.open import open_model
from bitnet_core.formats.ternary.i2_s import Layout
from bitnet_core.hub import local
from bitnet_core.model.source import ModelSource
from bitnet_core.progress import Progress
from bitnet_core.tokenizer import Tokenizer, load_tokenizer

__all__ = ["load", "open_source", "settle_layout"]

log = logging.getLogger(__name__)

SHIPPED = "stories"
"""Name of the small model that ships with the package."""


def load(
    model: str | Path | ModelSource | None = None,
    device: str | DeviceRequest | Opening | None = "auto",
    *,
    layout: Layout | None = None,
    strict: bool | None = None,
    mmap: bool = True,
    fallback: bool = True,
    progress: Progress | None = None,
    **engine: Unpack[EngineSettings],
) -> Model:
    """Open a model and load it onto a device.

    model: a file, a folder, a model of the hub (hf:OWNER/REPO[:FILE]), an opened source, or None or "stories" for
    the small model that ships with the package. device: a request such as "auto", "gpu" or "cuda:0", or an Opening.
    layout: byte layout of I2_S tensors (None: detected). strict: treat warnings about the file as errors (None: by
    BITNET_STRICT_MODE). mmap: False reads the whole file, which may then change while it is used; a mapped file must
    not. fallback: True lets "auto" continue on the next device if one fails, at load or in a step; never applied to a
    named device. progress: called with (stage, units done, units in total).

    kv_dtype: type of the KV cache, "f16", "f32" or "int8". context: tokens of the longest request, prompt included
    (None: the model's, up to 131,072). kv_cache_bytes: size of the KV cache (None: on a discrete GPU half of the memory
    that weights and scratch leave free, elsewhere a quarter of the free memory, up to 1 GiB; never more than
    max_sequences requests of `context` tokens need). max_sequences: maximum concurrent requests. eviction: order in
    which cached prefixes are evicted, "lru", "fifo" or "lfu". stream_interval: seconds between the chunks of a greedy
    stream. lm_head_int8: add an int8 copy of an f16 head, which halves the reading and gives the same tokens: "auto"
    (if it saves time), "on" or "off". prompt_lookup: speculative decoding of a single greedy request with draft tokens
    from its earlier tokens, which gives the same output: "auto" (if it saves time), "on" (needs a batch-invariant
    device) or "off". activation_group_size: columns per activation scale in models with grouped scales: 32, or 128 for
    faster prompts and coarser rounding (None: 32). deterministic: True makes every text independent of the requests
    beside it, on any device: kernels are not fused, and a step has no more rows than the device keeps batch-invariant,
    so it may be slower. pool: limits of the buffer pool.

    Raises ModelError, TokenizerError, StrictModeError, UsageError, and the GpuError of a named device.
    """
    check_model(model)
    if not isinstance(device, DeviceRequest | Opening) and device is not None:
        check("device", device, TEXT)
    check_options(
        {"layout": layout, "strict": strict, "mmap": mmap, "fallback": fallback, "progress": progress, **engine}
    )
    options = EngineOptions(**engine)
    with device if isinstance(device, Opening) else Opening(device, fallback) as opening:
        source = open_source(model, layout, strict_mode() if strict is None else strict, mmap)
        try:
            return _on_a_device(source, opening, options, progress)
        except BaseException:
            source.close()
            raise


def _on_a_device(source: ModelSource, opening: Opening, options: EngineOptions, progress: Progress | None) -> Model:
    """Load the model onto the first device that can hold it, while a thread reads the vocabulary. An error of the
    tokenizer takes precedence over a device's."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(load_tokenizer, source.tokenizer, prepared=False)
        try:
            placed = opening.result()
            while True:
                try:
                    return _placed(source, reading, *placed, options, progress)
                except (OutOfMemoryError, *DEVICE_FAILURES) as exc:
                    following = open_next(placed[1], exc)
                    if following is None:
                        raise
                    log.warning("%s; continuing on %s", exc, following[1].selected.request)
                    placed = following
        except GpuError:
            reading.result()
            raise


def open_source(
    model: str | Path | ModelSource | None, layout: Layout | None, strict: bool, mapped: bool
) -> ModelSource:
    """Open the model file of `load`'s arguments, without a device."""
    if model is not None and not isinstance(model, str | Path):
        return model
    if isinstance(model, str):
        if not model:
            raise UsageError("the model's name is empty: name a file, a folder or hf:OWNER/REPO, or pass None")
        model = local(model, log.info)
    if model is None or (model == SHIPPED and not Path(model).exists()):
        return open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")), strict=strict)
    return open_model(model, layout=layout, strict=strict, mapped=mapped)


def _placed(
    source: ModelSource,
    tokenizer: Future[Tokenizer],
    device: Device,
    summary: BackendStartupSummary,
    options: EngineOptions,
    progress: Progress | None,
) -> Model:
    """Load the model onto a device; closes the device if that fails."""
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer.result(), device))
        return Model(source, tokenizer, device, summary, options, progress)
    except BaseException:
        with suppress(GpuError):  # report the first error
            device.close()
        raise


def settle_layout(source: ModelSource) -> None:
    """Decide the I2_S layout of an opened file if it is in doubt, by a self-test on the best device, as `load` does.

    Raises ModelError if the model predicts plain English under no layout.
    """
    if not isinstance(source, GGUFSource) or not source.has_i2_s or not source.layout.in_doubt:
        return
    tokenizer = load_tokenizer(source.tokenizer)
    opened, _ = open_device("auto")
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer, opened))
    finally:
        opened.close()


def _self_test(source: ModelSource, tokenizer: Tokenizer, device: Device) -> float:
    """Return the mean negative log likelihood of the self-test's sentence in the source's present layout."""
    tokens = tokenizer.encode(SELF_TEST_TEXT, add_bos=tokenizer.add_bos)
    context = min(source.config.context, len(tokens) + 1)
    engine = Engine(source, device, EngineOptions(context=context, max_sequences=1))
    try:
        return float(token_losses(engine, tokens[:context]).mean())
    finally:
        engine.free()
