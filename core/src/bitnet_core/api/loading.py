"""Open a model file and put it on a device."""

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
from bitnet_core.plan.upload import Progress
from bitnet_core.tokenizer import Tokenizer, load_tokenizer

__all__ = ["load", "open_source", "settle_layout"]

log = logging.getLogger(__name__)

SHIPPED = "stories"
"""Name of the small model that comes with the package."""


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
    """Open a model on a device.

    model: a file, a folder, a model of the hub (hf:OWNER/REPO[:FILE]), an opened source, or None or "stories" for
    the small model that ships with the package. device: a request such as "auto", "gpu" or "cuda:0", or one that is
    being opened already. kv_dtype: "f16", "f32" or "int8". context: tokens of the longest sequence (None: the
    model's, up to 131,072). kv_cache_bytes: bytes of the key/value cache (None: half of the memory that weights and
    scratch leave free on a GPU of its own, elsewhere a quarter of the free memory, up to 1 GiB; never more than
    max_sequences full texts need). max_sequences: texts generated at a time. eviction: which reusable prefix goes
    first, "lru", "fifo" or "lfu".
    stream_interval: about how long greedy tokens are made before a stream shows them. lm_head_int8: whether an f16 head
    gets an int8 copy for choosing tokens exactly with half the reading, "auto" (where that saves time), "on" or "off".
    prompt_lookup: whether next tokens of a greedy text that is alone are guessed from what it said before and checked
    several at once, which gives the same text, "auto" (where that saves time), "on" or "off"; "on" needs a device whose
    steps of several rows compute each as alone.
    activation_group_size: columns that share an activation scale in models that have one for blocks: 32, or 128, with
    which prompts are faster and rounding is coarser (None: 32).
    layout: byte layout of I2_S tensors, where the file's own evidence is not to be asked. strict: warnings about the
    file are errors (None: as BITNET_STRICT_MODE says). mmap: where false, the file is read as a whole, so that it may
    be changed or cut off while it is used; a mapped one must not be. fallback: whether "auto" goes on with the next
    device where one fails, at load or in the middle of a text; a device that was named never does. pool: limits of
    the pool that buffers of steps come from. progress is called with (what, done, total).

    Raises ModelError, TokenizerError, StrictModeError, UsageError and the GpuError of a device that was asked for.
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
    """The model on the first device that can hold it. Weights come there while the vocabulary is read; but what is
    wrong with the file is told before what is with a device."""
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
                    log.warning("%s, going on with %s", exc, following[1].selected.request)
                    placed = following
        except GpuError:
            reading.result()
            raise


def open_source(
    model: str | Path | ModelSource | None, layout: Layout | None, strict: bool, mapped: bool
) -> ModelSource:
    """What `load` reads, without a device; its arguments."""
    if model is not None and not isinstance(model, str | Path):
        return model
    if isinstance(model, str):
        if not model:
            raise UsageError("the model's name is empty: give a file, a folder or hf:OWNER/REPO, or none at all")
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
    """The model on a device, which is closed if it cannot be used."""
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer.result(), device))
        return Model(source, tokenizer, device, summary, options, progress)
    except BaseException:
        with suppress(GpuError):  # what led here is the error that counts
            device.close()
        raise


def settle_layout(source: ModelSource) -> None:
    """Settles a doubt about the I2_S layout of an opened file by the self-test on the best device, as `load` does.

    Without a doubt no device is opened. Raises ModelError if the model predicts plain English under no layout.
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
    """Mean negative log likelihood of the self-test's sentence with the weights that the source gives now."""
    tokens = tokenizer.encode(SELF_TEST_TEXT, add_bos=tokenizer.add_bos)
    context = min(source.config.context, len(tokens) + 1)
    engine = Engine(source, device, EngineOptions(context=context, max_sequences=1))
    try:
        return float(token_losses(engine, tokens[:context]).mean())
    finally:
        engine.free()
