"""A model's decode step as files for a browser: weights, kernels as WGSL, the launch list, the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bitnet_core.api import Model
from bitnet_core.discovery.request import DeviceRequest
from bitnet_core.discovery.selection import BackendStartupSummary
from bitnet_core.engine.options import EngineOptions
from bitnet_core.errors import UsageError
from bitnet_core.formats.open import open_model
from bitnet_core.hal import DeviceInfo, DeviceType, TransferMode, Tuning, View
from bitnet_core.hal.base import Launch
from bitnet_core.kernels.spec import KernelSpec
from bitnet_core.plan.launcher import Launch as Planned
from bitnet_core.reference.device import NumpyBuffer, NumpyDevice, NumpyKernel
from bitnet_core.tokenizer import load_tokenizer

from bitnet_webgpu.compile import entry_points, grids, source, writes
from bitnet_webgpu.describe import STORAGE
from bitnet_webgpu.tuning import choose

FORMAT = 1
"""Of model.json; the page refuses others."""
_BROWSER = DeviceInfo(
    backend="webgpu",
    index=0,
    name="browser",
    type=DeviceType.SOFTWARE,
    max_binding=128 << 20,
    max_grid=(65535, 65535, 65535),
    alignment=256,
    transfer=TransferMode.EXPLICIT_COPY,
    extra=MappingProxyType({"workgroup_storage": STORAGE}),
)
"""WebGPU's default limits, and launches that are quick on SwiftShader too, which many a browser falls back to."""


class BrowserDevice(NumpyDevice):
    """Tunes launches as for a browser, and carries them out with numpy."""

    def __init__(self) -> None:
        super().__init__(_BROWSER)

    def tuning(self, spec: KernelSpec, constants: Mapping[str, int], params: Mapping[str, int | float]) -> Tuning:
        """As for a real device."""
        return choose(spec, constants, params, self.info)

    def _run(self, launch: Launch[NumpyBuffer, NumpyKernel]) -> None:
        super()._run(replace(launch, bound=launch.bound[: len(launch.kernel.spec.bindings)]))


def export(folder: Path) -> None:
    """Write model.json, tokenizer.json and weights.bin of the shipped model. UsageError where the folder has files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder, and nothing is overwritten: name another")
    opened = open_model(Path(str(files("bitnet_core") / "data" / "stories.gguf")))
    tokenizer, device = load_tokenizer(opened.tokenizer), BrowserDevice()
    summary = BackendStartupSummary(DeviceRequest("webgpu", 0), ("webgpu",), device.info)
    with Model(opened, tokenizer, device, summary, EngineOptions("f16", max_sequences=1)) as model:
        model.generate("Once", max_tokens=3)
        (step,) = [found for name, found in model.engine.recordings().items() if name.startswith("greedy")]
        document, weights = _described(step.launches)
    document["context"] = opened.config.context
    document["bos"] = tokenizer.bos_id if tokenizer.add_bos else None
    document["stops"] = sorted(tokenizer.eos_ids)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(weights)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    (folder / "model.json").write_text(json.dumps(document), "utf-8")


def _described(launches: tuple[Planned, ...]) -> tuple[dict[str, Any], bytes]:
    """model.json: buffers (size, and where in weights.bin those lie that no launch writes), kernels, launches, and
    which buffers the host writes or reads; and weights.bin."""
    buffers = {id(view.buffer): view.buffer for launch in launches for view in launch.views}
    number = {key: i for i, key in enumerate(buffers)}
    written = {
        id(view.buffer)
        for launch in launches
        for view, writing in zip(launch.views, writes(launch.kernel.spec, launch.kernel.tuning), strict=True)
        if writing
    }
    weights, described = bytearray(), []
    for key, buffer in buffers.items():
        about = {"size": -(-buffer.nbytes // 16) * 16}
        if key not in written:
            assert isinstance(buffer, NumpyBuffer)
            about["at"] = len(weights)
            weights += buffer.data.tobytes().ljust(about["size"], b"\0")
        described.append(about)
    kernels: dict[str, int] = {}
    steps = [one for launch in launches for one in _steps(launch, kernels, number)]
    advance = launches[-1]
    names = {binding.name: view for binding, view in zip(advance.kernel.spec.bindings, advance.views, strict=False)}
    host = {name: _bound(names[name], number) for name in ("step", "history", "tables")}
    document = {"format": FORMAT, "buffers": described, "kernels": list(kernels), "launches": steps, "host": host}
    return document, bytes(weights)


def _steps(launch: Planned, kernels: dict[str, int], number: Mapping[int, int]) -> list[dict[str, Any]]:
    kernel = launch.kernel
    text = source(kernel.spec, kernel.constants, kernel.tuning)
    common = {
        "kernel": kernels.setdefault(text, len(kernels)),
        "writes": writes(kernel.spec, kernel.tuning),
        "views": [_bound(view, number) for view in launch.views],
        "params": list(launch.params),
    }
    stages = zip(entry_points(kernel.tuning), grids(launch.grid, kernel.tuning), strict=True)
    return [common | {"entry": entry, "grid": grid} for entry, grid in stages]


def _bound(view: View, number: Mapping[int, int]) -> list[int]:
    """Buffer, offset, bytes."""
    return [number[id(view.buffer)], view.offset, -(-view.nbytes // 16) * 16]
