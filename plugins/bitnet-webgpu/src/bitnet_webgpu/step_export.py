"""Export of a model's greedy step to files, for a program that launches it elsewhere, such as a web page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from bitnet_core.api import Model
from bitnet_core.formats.open import open_model
from bitnet_core.options.engine import EngineOptions
from bitnet_core.tokenizer import load_tokenizer
from bitnet_hal.checks import writes
from bitnet_hal.device import View
from bitnet_hal.discovery.request import DeviceRequest
from bitnet_hal.discovery.selection import BackendStartupSummary
from bitnet_hal.launcher import Launch as Planned
from bitnet_hal.output import new_folder
from bitnet_hal.plugin import BoundLaunch, Constants, DeviceInfo, KernelSpec, Params, Tuning, TuningQuery
from bitnet_hal.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel
from bitnet_hal.rounding import round_up

FORMAT = 1
"""The version of model.json; readers refuse any other."""

Tune = Callable[[TuningQuery], Tuning]
Stages = Callable[[Planned], Sequence[Mapping[str, Any]]]
"""A function that returns the dispatches of a launch: the text under "kernel", and further fields for the reader."""


class ExportDevice(NumpyDevice):
    """A device that runs launches with numpy, but tunes them for a device that is not present."""

    def __init__(self, info: DeviceInfo, tune: Tune) -> None:
        super().__init__(info)
        self._tune = tune

    def tuning(self, spec: KernelSpec, constants: Constants, params: Params) -> Tuning:
        """Return the tuning for the device that is not present."""
        return self._tune(TuningQuery(spec, constants, params, self.info))

    def _run(self, launch: BoundLaunch[NumpyBuffer, NumpyKernel]) -> None:
        super()._run(replace(launch, bound=launch.bound[: len(launch.kernel.spec.bindings)]))


def export_stories(folder: Path, device: ExportDevice, stages: Stages) -> None:
    """Write model.json, tokenizer.json and weights.bin of the shipped model, all or none.

    model.json: buffers (size in bytes, and the offset in weights.bin of those that no launch writes), kernels,
    launches, and the buffers that the host writes or reads. Raises UsageError if the folder has files or cannot be
    written.
    """
    with new_folder(folder) as made:
        _write(made, device, stages)


def _write(folder: Path, device: ExportDevice, stages: Stages) -> None:
    opened = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    tokenizer = load_tokenizer(opened.tokenizer)
    summary = BackendStartupSummary(DeviceRequest(device.info.backend, 0), (device.info.backend,), device.info)
    with Model(opened, tokenizer, device, summary, EngineOptions("f16", max_sequences=1)) as model:
        model.generate("Once", max_tokens=3)
        (step,) = [found for name, found in model.engine.recordings().items() if name.startswith("greedy")]
        document, weights = _described(step.launches, stages)
    document |= {"context": opened.config.context, "stops": sorted(tokenizer.eos_ids)}
    document["bos"] = tokenizer.bos_id if tokenizer.add_bos else None
    (folder / "weights.bin").write_bytes(weights)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    (folder / "model.json").write_text(json.dumps(document), "utf-8")


def _described(launches: Sequence[Planned], stages: Stages) -> tuple[dict[str, Any], bytes]:
    buffers = {id(view.buffer): view.buffer for launch in launches for view in launch.views}
    number = {key: i for i, key in enumerate(buffers)}
    written = {
        id(view.buffer)
        for launch in launches
        for view, writing in zip(launch.views, writes(launch.kernel.spec, launch.kernel.tuning), strict=True)
        if writing
    }
    weights = bytearray()
    described = []
    for key, buffer in buffers.items():
        about = {"size": _room(buffer.nbytes)}
        if key not in written:
            assert isinstance(buffer, NumpyBuffer)
            about["at"] = len(weights)
            weights += buffer.data.tobytes().ljust(about["size"], b"\0")
        described.append(about)
    kernels: dict[str, int] = {}
    steps = [one for launch in launches for one in _steps(launch, stages, kernels, number)]
    advance = launches[-1]
    names = {binding.name: view for binding, view in zip(advance.kernel.spec.bindings, advance.views, strict=False)}
    host = {name: _bound(names[name], number) for name in ("step", "history", "tables")}
    document = {"format": FORMAT, "buffers": described, "kernels": list(kernels), "launches": steps, "host": host}
    return document, bytes(weights)


def _steps(launch: Planned, stages: Stages, kernels: dict[str, int], number: Mapping[int, int]) -> list[dict[str, Any]]:
    views = [_bound(view, number) for view in launch.views]
    common = {"views": views, "writes": writes(launch.kernel.spec, launch.kernel.tuning), "params": list(launch.params)}
    return [{**common, **one, "kernel": kernels.setdefault(one["kernel"], len(kernels))} for one in stages(launch)]


def _bound(view: View, number: Mapping[int, int]) -> list[int]:
    """Return [buffer number, offset, bytes]."""
    return [number[id(view.buffer)], view.offset, _room(view.nbytes)]


def _room(nbytes: int) -> int:
    return round_up(nbytes, 16)
