"""Open the model that a command's options describe."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitnet_hal.errors import UsageError

from bitnet_core.cli.console import note, progress_bar, say
from bitnet_core.cli.options import THREADS_VARIABLE, ModelOptions
from bitnet_core.cli.program import EndedByInterrupt
from bitnet_core.cli.start import uncollected
from bitnet_core.options.engine import EngineOptions
from bitnet_core.options.fields import arguments_of
from bitnet_core.options.loading import LoadOptions
from bitnet_core.options.split import main_device

if TYPE_CHECKING:
    from bitnet_core.api import Model
    from bitnet_core.api.replicas import ReplicaOpener, SeveralDevices
    from bitnet_core.model.source import ModelSource


@contextmanager
def opened(
    model: ModelOptions, loading: LoadOptions, engine: EngineOptions, synthetic: str | None = None
) -> Iterator[Model]:
    """Open the model with a progress bar, print a line with its name and device, and close it after the block.

    synthetic: a shape of random weights instead of a model file.
    """
    with uncollected():
        loaded = _load(model, loading, engine, synthetic)
    try:
        with loaded:
            _introduce(loaded)
            if hint := slow_device(model.device, loaded.device.info.backend):
                note(hint)
            yield loaded
    finally:
        gc.unfreeze()  # extension modules report leaks of objects that are not collected when the program ends


def _load(model: ModelOptions, loading: LoadOptions, engine: EngineOptions, synthetic: str | None) -> Model:
    from bitnet_hal.discovery.opening import Opening
    from bitnet_hal.discovery.request import resolve_request

    use_threads(model.threads)
    source = _source(model.model, synthetic)
    request = resolve_request(main_device(engine.split, model.device))
    with Opening(request, loading.fallback) as opening:
        with EndedByInterrupt():
            from bitnet_core.api import load  # imported here, while the driver starts

        with progress_bar("starting") as progress:
            return load(source, opening, progress=progress, **arguments_of(loading), **arguments_of(engine))


def several_devices(device: str | None) -> SeveralDevices | None:
    """Return the devices of a request for several, None for one device. Raises UsageError if it is not valid."""
    from bitnet_hal.discovery.request import ALL, resolve_requests

    requests = resolve_requests(device)
    if len(requests) == 1 and requests[0] != ALL:
        return None
    from bitnet_core.api.replicas import SeveralDevices

    return SeveralDevices(requests)


def replicas(
    model: ModelOptions, loading: LoadOptions, engine: EngineOptions, synthetic: str | None = None
) -> ReplicaOpener:
    """Return the opener of a model in the processes of several devices, without speculation, whose gain depends on the
    text."""
    from bitnet_core.api.replicas import ReplicaOpener

    use_threads(model.threads)
    loading = replace(loading, draft_model=None, draft_device=None)
    return ReplicaOpener(_source(model.model, synthetic), loading, replace(engine, speculate="off"))


def use_threads(threads: int | None) -> None:
    """Set the number of threads for this process and its children, before any of them opens a device."""
    if threads is not None:
        os.environ[THREADS_VARIABLE] = str(threads)


def slow_device(request: str | None, backend: str) -> str:
    """Return a hint for a user whose request left numpy as the best device, "" otherwise."""
    from bitnet_hal.discovery.known import KNOWN, install_command
    from bitnet_hal.discovery.registry import registry
    from bitnet_hal.discovery.request import AUTO, resolve_request

    if backend != "numpy" or resolve_request(request) != AUTO:
        return ""
    said = "numpy is the slow reference; the fast CPU backend"
    if "cpu" in {*registry().backends, *(entry.name for entry in registry().quarantined)}:
        return f"{said}, which is installed, cannot be used here: bitnet doctor says why"
    return f"{said} is {KNOWN['cpu'].package}: {install_command(KNOWN['cpu'].package)}"


def source_of(model: str | None, synthetic: str | None) -> tuple[ModelSource, str]:
    """Open a model file without a device; return it and its name. Raises UsageError if both are given."""
    from bitnet_hal.environment import strict_mode

    from bitnet_core.api.loading import open_source
    from bitnet_core.formats.synthetic import SyntheticSource

    if model is not None and synthetic is not None:
        raise UsageError("--model and --synthetic exclude each other")
    source = SyntheticSource(synthetic) if synthetic else open_source(model, None, strict_mode(), True)
    return source, source.config.name or source.path.name


def _introduce(model: Model) -> None:
    for finding in model.source.findings:
        if finding.severity == "warning":
            say(f"warning: {finding.message} [{finding.code}]", "yellow")
    info, path = model.device.info, model.summary.compute_path
    note(f"{model.name} on {info.request} ({info.name})" + ("" if path == "real" else f", compute path {path}"))
    layers = model.engine.layers_by_device
    if len(layers) > 1:
        note("layers: " + ", ".join(f"{request} {count}" for request, count in layers.items()))


def _source(model: str | None, synthetic: str | None) -> str | Path | ModelSource | None:
    if synthetic:
        from bitnet_core.formats.synthetic import SyntheticSource

        return SyntheticSource(synthetic)
    if model is None:
        return None
    from bitnet_core.hub import local

    return local(model, say)
