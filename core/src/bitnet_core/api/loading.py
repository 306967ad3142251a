"""Open a model file and load it onto a device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Unpack

from bitnet_hal.device import Device
from bitnet_hal.discovery.opening import Opening
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import (
    BackendStartupSummary,
    open_device,
    open_listed,
    open_next,
    other_gpus,
)
from bitnet_hal.environment import strict_mode
from bitnet_hal.errors import DEVICE_FAILURES, GpuError, OutOfMemoryError, UsageError

from bitnet_core.api.arguments import check, check_model, check_options
from bitnet_core.api.drafting import Draft
from bitnet_core.api.model import Model
from bitnet_core.api.options import LoadSettings
from bitnet_core.engine.engine import Engine
from bitnet_core.engine.memory_limit import limit_memory
from bitnet_core.engine.perplexity import token_losses
from bitnet_core.engine.placement import split_layers
from bitnet_core.formats.gguf.source import GGUFSource
from bitnet_core.formats.i2_s_layout.self_test import SELF_TEST_TEXT, decide_layout
from bitnet_core.formats.open import open_model
from bitnet_core.formats.synthetic import SyntheticSource
from bitnet_core.hub import local
from bitnet_core.model.source import ModelSource
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import options_of
from bitnet_core.options.loading import Layout, LoadOptions
from bitnet_core.options.split import main_device, parse_split
from bitnet_core.progress import Progress
from bitnet_core.tokenizer import Tokenizer, load_tokenizer

__all__ = ["load", "open_source", "settle_layout"]

log = logging.getLogger(__name__)

SHIPPED = "stories"
"""Name of the small model that ships with the package."""

SYNTHETIC = "synthetic:"
"""Prefix of the names of model shapes with random weights."""


def load(
    model: str | Path | ModelSource | None = None,
    device: str | DeviceRequest | Opening | None = None,
    **options: Unpack[LoadSettings],
) -> Model:
    """Open a model and load it onto a device.

    model: a file, a folder, a model of the hub (hf:OWNER/REPO[:FILE]), an opened source, or None or "stories" for the
    small model that ships with the package. device: a request such as "auto", "gpu" or "cuda:0", or an Opening; None:
    that of BITNET_DEVICE, else of the configuration file, else "auto". options: the fields of LoadOptions and
    EngineOptions (docs/python.md lists them with their help and ranges), and progress, called with (stage, units done,
    total units).

    Raises ModelError, TokenizerError, StrictModeError, UsageError, and the GpuError of a named device.
    """
    check_model(model)
    if not isinstance(device, DeviceRequest | Opening) and device is not None:
        check("device", device, str)
    given = check_options(options, LoadSettings)
    loading = LoadOptions(**{name: given.pop(name) for name in options_of(LoadOptions) if name in given})
    progress = given.pop("progress", None)
    engine = EngineOptions(**given)
    strict = strict_mode() if loading.strict is None else loading.strict
    if device is None or isinstance(device, str):
        device = main_device(engine.split, device)
    with (
        device if isinstance(device, Opening) else Opening(device, loading.fallback) as opening,
        ExitStack() as files_opened,
    ):
        source = open_source(model, loading.layout, strict, loading.mmap)
        files_opened.callback(source.close)
        draft = _draft(loading, strict)
        if draft is not None:
            files_opened.callback(draft.source.close)
        loaded = _on_a_device(source, opening, engine, progress, draft)
        files_opened.pop_all()  # the model closes them from now on
        return loaded


def _draft(loading: LoadOptions, strict: bool) -> Draft | None:
    """Open the draft model of the options, if they name one."""
    if loading.draft_model is not None:
        return Draft(open_source(loading.draft_model, None, strict, loading.mmap), loading.draft_device)
    if loading.draft_device is not None:
        raise UsageError("draft_device is given, but no draft_model")
    return None


def _on_a_device(
    source: ModelSource, opening: Opening, options: EngineOptions, progress: Progress | None, draft: Draft | None
) -> Model:
    """Load the model onto the first device that can hold it, while a thread reads the vocabulary. An error of the
    tokenizer takes precedence over a device's."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(load_tokenizer, source.tokenizer, prepared=False)
        try:
            placed = opening.result()
            while True:
                limit_memory(placed[0], options.device_memory)
                if options.split is not None:
                    return _split(source, reading, *placed, options, progress, draft)
                try:
                    return _placed(source, reading, *placed, options, progress, draft)
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
        if model.startswith(SYNTHETIC):
            return SyntheticSource(model.removeprefix(SYNTHETIC))
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
    draft: Draft | None,
    before: Sequence[tuple[Device, int]] = (),
) -> Model:
    """Load the model onto a device, and onto those of `before`; closes `device` if that fails."""
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer.result(), device))
        if draft is None:
            return Model(source, tokenizer, device, summary, options, progress, before=before)
        draft.check(tokenizer.result, source.config)
        context = options.context_of(source.config)
        draft_model = partial(draft.load, device, context, options)
        return Model(source, tokenizer, device, summary, options, progress, draft_model, before)
    except BaseException:
        with suppress(GpuError):  # report the first error
            device.close()
        raise


def _split(
    source: ModelSource,
    tokenizer: Future[Tokenizer],
    device: Device,
    summary: BackendStartupSummary,
    options: EngineOptions,
    progress: Progress | None,
    draft: Draft | None,
) -> Model:
    """Load the model onto the devices of options.split; `device` gets the last layers. Closes all devices if that
    fails."""
    devices = [device]
    try:
        parts = parse_split(options.split or "")
        if parts:
            counts = [layers for _, layers in parts]
            if sum(counts) != source.config.n_layers:
                raise UsageError(
                    f"the split {options.split} has {sum(counts)} layers, and the model {source.config.n_layers}"
                )
            for request, _ in parts[:-1]:
                devices.insert(-1, open_device(request, fallback=False)[0])
                limit_memory(devices[-2], options.device_memory)
            named = [used.info.request for used in devices]
            if len(set(named)) < len(named):
                raise UsageError(f"the split {options.split} names a device twice: its devices are {', '.join(named)}")
        else:
            for info in other_gpus(device.info):
                devices.insert(-1, open_listed(info))
                limit_memory(devices[-2], options.device_memory)
            counts = _divided(source, options, devices)
        before = list(zip(devices[:-1], counts[:-1], strict=True))
        log.info("layers: %s", ", ".join(f"{d.info.request} {n}" for d, n in zip(devices, counts, strict=True)))
        return _placed(source, tokenizer, device, summary, options, progress, draft, before)
    except BaseException:
        for opened in devices:
            with suppress(GpuError):  # report the first error
                opened.close()
        raise


def _divided(source: ModelSource, options: EngineOptions, devices: list[Device]) -> list[int]:
    """Return the number of layers of each device; closes and removes devices without memory for a layer."""
    if len(devices) == 1:
        return [source.config.n_layers]
    counts = split_layers(source, options, devices)
    for unused in [opened for opened, count in zip(devices, counts, strict=True) if not count]:
        log.info("%s has no memory for a layer", unused.info.request)
        devices.remove(unused)
        unused.close()
    return [count for count in counts if count]


def settle_layout(source: ModelSource) -> None:
    """Determine the I2_S layout of an opened file if it is ambiguous, by a self-test on the best device, as `load`.

    Raises ModelError if the model predicts plain English with none of the layouts.
    """
    if not isinstance(source, GGUFSource) or not source.has_i2_s or not source.layout.in_doubt:
        return
    tokenizer = load_tokenizer(source.tokenizer)
    opened, _ = open_device()
    try:
        decide_layout(source, lambda _: _self_test(source, tokenizer, opened))
    finally:
        opened.close()


def _self_test(source: ModelSource, tokenizer: Tokenizer, device: Device) -> float:
    """Return the mean negative log likelihood of the self-test's sentence with the source's current layout."""
    tokens = tokenizer.encode(SELF_TEST_TEXT, add_bos=tokenizer.add_bos)
    context = min(source.config.context, len(tokens) + 1)
    engine = Engine(source, device, EngineOptions(context=context, max_sequences=1))
    try:
        return float(token_losses(engine, tokens[:context]).mean())
    finally:
        engine.free()
